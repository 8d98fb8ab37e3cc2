"""Snapshots of a server's counters.

The loop makes snapshots of the counters, and nobody changes them: any thread may read the latest one. So no counter is
locked, and none is read while it changes. Secrets are in none.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Literal, NamedTuple

from hybridps.ps.server.admission import Accounts
from hybridps.ps.server.members import Members
from hybridps.ps.server.tables.jobs import Jobs

SNAPSHOT_SECONDS = 0.5
"""Minimum time between two snapshots. A server that has nothing to do makes them too."""

MOST_TABLES = 1000
"""In a snapshot: a tenant with more of them cannot make it long."""

Values = Mapping[str, Mapping[tuple[str, ...], float]]
"""Of each metric, by its labels."""

TENANT, JOB, TABLE = ("tenant",), ("tenant", "job"), ("tenant", "job", "table")

METRICS: dict[str, tuple[Literal["counter", "gauge"], tuple[str, ...], str]] = {
    "uptime_seconds": ("gauge", (), "Age of the server when these figures were taken."),
    "threads": ("gauge", (), "Threads that share the chunks."),
    "backlog": ("gauge", (), "Tasks handed to the threads and not done."),
    "refused_requests": ("counter", (), "Requests refused, of all clients."),
    "refused_connections": ("counter", (), "Connections refused or broken off."),
    "tenant_messages": ("counter", TENANT, "Messages carried out or refused."),
    "tenant_received_bytes": ("counter", TENANT, "Bytes of messages received, with about 4 KB for each message."),
    "tenant_served_bytes": (
        "counter",
        TENANT,
        "Bytes of chunks read or written, in which shares and rates are measured.",
    ),
    "tenant_sent_bytes": ("counter", TENANT, "Payload bytes of answers."),
    "tenant_refused": ("counter", TENANT, "Requests refused."),
    "tenant_not_finite": ("counter", TENANT, "Requests refused for NaN or Inf."),
    "tenant_rested_seconds": ("counter", TENANT, "Seconds that a tenant was held back by its rate."),
    "tenant_memory_bytes": ("gauge", TENANT, "Memory used."),
    "tenant_waiting_messages": ("gauge", TENANT, "Messages in the queue."),
    "tenant_memory_limit_bytes": ("gauge", TENANT, "Memory quota, if any."),
    "job_groups": ("gauge", JOB, "Groups that are there."),
    "table_rounds": ("counter", TABLE, "Rounds computed, of all chunks."),
    "table_staleness_values": ("gauge", TABLE, "Values that the slowest group is behind the furthest one."),
    "table_slowest_group": ("gauge", TABLE, "Index of the slowest group."),
    "table_round_age_seconds": ("gauge", TABLE, "Seconds since a round was computed, to about one second."),
}
"""Each metric's kind, labels and description. Its name has `hybridps_` before it."""


class Work(NamedTuple):
    """What the loop knows of the whole server."""

    backlog: int
    refused_requests: int
    refused_connections: int


class Observer:
    """Makes snapshots, in the loop. `latest` may be read by any thread."""

    def __init__(self, accounts: Accounts, members: Members, jobs: Jobs, threads: int) -> None:
        self.latest: Values = {}
        self._accounts = accounts
        self._members = members
        self._jobs = jobs
        self._threads = threads
        self._began_seconds = time.monotonic()
        self._due_seconds = self._began_seconds
        self._moved: dict[tuple[str, str], tuple[float, float]] = {}
        """Of each table, its rounds, and when a snapshot first had so many."""

    def look(self, now: float, work: Work) -> None:
        """Make a snapshot if it is time for one."""
        if now < self._due_seconds:
            return
        self._due_seconds = now + SNAPSHOT_SECONDS
        values: dict[str, dict[tuple[str, ...], float]] = {}
        for name, labels, value in self._samples(now, work):
            values.setdefault(name, {})[labels] = value
        self.latest = values

    def _samples(self, now: float, work: Work) -> Iterator[tuple[str, tuple[str, ...], float]]:
        yield "uptime_seconds", (), now - self._began_seconds
        yield "threads", (), self._threads
        for name, count in work._asdict().items():
            yield name, (), count
        for account in self._accounts:
            labels: tuple[str, ...] = (account.name,)
            for name in ("messages", "received_bytes", "served_bytes", "sent_bytes", "refused", "not_finite"):
                yield f"tenant_{name}", labels, getattr(account, name)
            yield "tenant_rested_seconds", labels, account.rested_seconds
            yield "tenant_memory_bytes", labels, account.budget.used_bytes
            yield "tenant_waiting_messages", labels, len(account.waiting)
            if account.budget.limit_bytes is not None:
                yield "tenant_memory_limit_bytes", labels, account.budget.limit_bytes
        groups: dict[tuple[str, ...], int] = {}
        for member in self._members:
            of_job = member.account.name, _within(member.job)
            groups[of_job] = groups.get(of_job, 0) + 1
        for labels, count in groups.items():
            yield "job_groups", labels, count
        yield from self._of_tables(now)

    def _of_tables(self, now: float) -> Iterator[tuple[str, tuple[str, ...], float]]:
        before, self._moved = self._moved, {}
        for job, table in islice(self._jobs.tables(), MOST_TABLES):
            key, rounds, lag = (job, table.name), table.progress.completed, table.progress.lag
            known = before.get(key)
            self._moved[key] = known if known is not None and known[0] == rounds else (rounds, now)
            labels: tuple[str, ...] = (job.rpartition("/")[0] or job, _within(job), table.name)
            yield "table_rounds", labels, rounds
            yield "table_staleness_values", labels, lag.values
            yield "table_round_age_seconds", labels, now - self._moved[key][1]
            if lag.group is not None:
                yield "table_slowest_group", labels, lag.group


def _within(job: str) -> str:
    """The job's own name, without its tenant's."""
    return job.rpartition("/")[2]
