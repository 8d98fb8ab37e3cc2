"""Snapshots of a server's counters.

The server's thread makes them, and nobody changes them: any thread may read the latest one. So no counter is locked,
and none is read while it changes. Secrets are in none.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from hybridps.ps.accounts import Accounts
from hybridps.ps.members import Members
from hybridps.ps.shard import Shard

SNAPSHOT_SECONDS = 0.5
"""Between two snapshots, at least. A server that has nothing to do makes one each second."""

MOST_TABLES = 1000
"""In a snapshot: a tenant with more of them cannot make it long."""


class TenantState(NamedTuple):
    """What a tenant has caused and uses; without an allow-list each job is one."""

    tenant: str
    messages: int
    received_bytes: int
    served_bytes: int
    sent_bytes: int
    refused: int
    not_finite: int
    memory_bytes: int
    memory_limit_bytes: int | None
    waiting: int
    rested_seconds: float


class JobState(NamedTuple):
    """How many groups of a job are there."""

    tenant: str
    job: str
    groups: int


class TableState(NamedTuple):
    """Rounds of a table; `slowest` is the group that is `behind` so many values, None without groups."""

    tenant: str
    job: str
    table: str
    rounds: float
    behind: float
    slowest: int | None
    age_seconds: float


class Snapshot(NamedTuple):
    """Of one moment, `uptime_seconds` after the server began."""

    uptime_seconds: float = 0.0
    threads: int = 0
    backlog: int = 0
    refused: int = 0
    refused_connections: int = 0
    tenants: tuple[TenantState, ...] = ()
    jobs: tuple[JobState, ...] = ()
    tables: tuple[TableState, ...] = ()


class Observer:
    """Makes snapshots, in the server's own thread. `latest` may be read by any."""

    def __init__(self, accounts: Accounts, members: Members, shard: Shard, threads: int) -> None:
        self.latest = Snapshot(threads=threads)
        self._accounts = accounts
        self._members = members
        self._shard = shard
        self._threads = threads
        self._began_seconds = time.monotonic()
        self._due_seconds = self._began_seconds
        self._moved: dict[tuple[str, str], tuple[float, float]] = {}
        """Of each table, the rounds at the last snapshot that had more of them than the one before, and when."""

    def look(self, now: float, backlog: int, refused: int, refused_connections: int) -> None:
        """Make a snapshot if it is time for one."""
        if now < self._due_seconds:
            return
        self._due_seconds = now + SNAPSHOT_SECONDS
        self.latest = Snapshot(
            now - self._began_seconds,
            self._threads,
            backlog,
            refused,
            refused_connections,
            tuple(self._tenants()),
            tuple(self._jobs()),
            tuple(self._tables(now)),
        )

    def _tenants(self) -> Iterator[TenantState]:
        for account in self._accounts:
            yield TenantState(
                account.name,
                account.messages,
                account.received_bytes,
                account.served_bytes,
                account.sent_bytes,
                account.refused,
                account.not_finite,
                account.budget.used_bytes,
                account.budget.limit_bytes,
                len(account.waiting),
                account.rested_seconds,
            )

    def _jobs(self) -> Iterator[JobState]:
        groups: dict[tuple[str, str], int] = {}
        for member in self._members:
            names = member.account.name, _within(member.job)
            groups[names] = groups.get(names, 0) + 1
        return (JobState(tenant, job, count) for (tenant, job), count in groups.items())

    def _tables(self, now: float) -> Iterator[TableState]:
        before, self._moved = self._moved, {}
        for name, table in islice(self._shard.tables(), MOST_TABLES):
            key, rounds, lag = (name, table.name), table.progress.completed, table.progress.lag
            known = before.get(key)
            self._moved[key] = known if known is not None and known[0] == rounds else (rounds, now)
            tenant = name.rpartition("/")[0] or name
            age = now - self._moved[key][1]
            yield TableState(tenant, _within(name), table.name, rounds, lag.values, lag.group, age)


def _within(job: str) -> str:
    """The job's own name, without its tenant's."""
    return job.rpartition("/")[2]
