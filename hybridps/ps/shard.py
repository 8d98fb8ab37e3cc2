"""The server without transport: jobs, their tables, and who is to be answered with what.

Driven by calls, one at a time. Groups of different jobs never meet.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from hybridps.errors import HybridPSError, ProtocolError, ServerError
from hybridps.ps.budget import Budget
from hybridps.ps.rack import RackTable, check_rack
from hybridps.ps.table import Table
from hybridps.ps.terms import Outcome, Terms, Ticket, Up

MOST_JOBS = 4096
"""On a server."""


class GroupTakenError(ServerError):
    """Another process is that group. It may be gone already, and not yet taken as lost."""


@dataclass
class _Job:
    groups: int
    budget: Budget
    in_rack: bool = False
    present: set[int] = field(default_factory=set)
    gone: set[int] = field(default_factory=set)
    tables: dict[str, Table] = field(default_factory=dict)
    waits_for_absent: bool = True
    """Whether a table waits for a group that has not come yet, to initialise it."""

    @property
    def abandoned(self) -> bool:
        return not self.present

    def drop(self, name: str) -> None:
        """Forget a table, and what was brought to its rounds."""
        table = self.tables.pop(name)
        table.forget()
        self.budget.take(-self.memory_bytes(table.terms))

    def memory_bytes(self, terms: Terms) -> int:
        """Of a table, about: a rack server has two more arrays, for the way to its parents and back."""
        above = 2 * terms.layout.nbytes // terms.servers if self.in_rack else 0
        return terms.memory_bytes(self.groups) + above


class Shard:
    """What one server owns of every job, shared out over so many `owners`. It may refuse values with NaN or Inf.

    `memory_bytes` bounds the memory of all jobs together. `in_rack`: the server has parents, where the tables live.
    """

    def __init__(
        self, memory_bytes: int | None = None, owners: int = 1, check_finite: bool = True, in_rack: bool = False
    ) -> None:
        self.budget = Budget(memory_bytes)
        """Of all tenants."""
        self._owners = owners
        self._check_finite = check_finite
        self._in_rack = in_rack
        self._jobs: dict[str, _Job] = {}

    def enter(self, job: str, group: int, groups: int, budget: Budget | None = None) -> None:
        """Group `group` of `groups` takes part in `job`, which uses memory of a tenant's `budget`.

        Raises ServerError if the job has another number of groups, GroupTakenError if that group is there.
        """
        if not 0 <= group < groups:
            raise ProtocolError(f"group {group} is none of {groups} groups: they count from 0")
        there = self._jobs.get(job)
        if there is not None and there.present and there.groups != groups:
            raise ServerError(
                f"job {job!r} has groups={there.groups}, and this group gives {groups}: "
                "start all groups with the same number, or give this job another name"
            )
        if there is None or there.groups != groups:
            self._forget(job)
            self._make_room()
            there = self._jobs[job] = _Job(groups, budget or self.budget, self._in_rack)
        if group in there.present:
            raise GroupTakenError(
                f"group {group} of job {job!r} is there already: "
                "give each group its own index, or this job another name"
            )
        there.present.add(group)
        there.gone.discard(group)

    def leave(self, job: str, group: int, lost: bool = False) -> list[Outcome]:
        """A group goes. The last one takes the tables with it, unless it was `lost` and may come back.

        In a rack it takes them in any case: the parents have them.
        """
        there = self._jobs.get(job)
        if there is None or group not in there.present:
            return []
        there.present.discard(group)
        there.gone.add(group)
        outcomes = [outcome for table in there.tables.values() for outcome in table.leave(group)]
        if there.abandoned and (not lost or not there.tables or self._in_rack):
            self._forget(job)
        return outcomes

    def begin_without_absent(self, job: str) -> list[Outcome]:
        """Let the groups of `job` that are there initialise tables that wait for one that never came."""
        there = self._jobs.get(job)
        if there is None:
            return []
        there.waits_for_absent = False
        return [outcome for table in there.tables.values() for outcome in table.begin_without_absent(there.present)]

    def register(self, ticket: Ticket, table: str, terms: Terms, initialise: bool = False) -> list[Outcome]:
        """Join a table, and make it if it is new. `initialise` as in `Table.register`."""
        job = self._job(ticket)
        terms.check()
        if self._in_rack:
            check_rack(terms)
        there = job.tables.get(table)
        if there is not None and there.abandoned and there.terms != terms:
            job.drop(table)
            there = None
        if there is None:
            self._take_memory(table, terms, job)
            expected = (job.groups, job.gone, self._owners, self._check_finite, job.budget)
            try:
                there = job.tables[table] = (
                    RackTable(ticket.job, table, terms, *expected) if self._in_rack else Table(table, terms, *expected)
                )
            except BaseException:
                job.budget.take(-job.memory_bytes(terms))
                raise
            if not job.waits_for_absent:
                there.begin_without_absent(job.present)
        there.terms.check_same(terms, table)
        return there.register(ticket, initialise)

    def answered(self, up: Up, error: HybridPSError | None) -> list[Outcome]:
        """What went to the parents is back, as `RackTable.answered`; the table may be gone by now."""
        job = self._jobs.get(up.way.job)
        table = job.tables.get(up.way.table) if job else None
        return table.answered(up, error) if isinstance(table, RackTable) and table.way is up.way else []

    def settle(self, job: str, group: int, request: int) -> None:
        """The group has all answers to its requests before that one."""
        there = self._jobs.get(job)
        for table in there.tables.values() if there else ():
            if table.terms.rule.alone:
                table.settle(group, request)

    def check_room(self, ticket: Ticket, nbytes: int, what: str) -> None:
        """Raise ServerError if the group's tenant may not use so much more memory."""
        self._job(ticket).budget.check(nbytes, what)

    def table(self, ticket: Ticket, name: str) -> Table:
        """The table of that name of the group's job. Raises ServerError if there is none."""
        table = self._job(ticket).tables.get(name)
        if table is None:
            raise ServerError(f"job {ticket.job!r} has no table {name!r} here: register it first")
        return table

    def tables(self) -> Iterator[tuple[str, Table]]:
        """All tables, each with its job."""
        return ((name, table) for name, job in self._jobs.items() for table in job.tables.values())

    def _job(self, ticket: Ticket) -> _Job:
        job = self._jobs.get(ticket.job)
        if job is None or ticket.group not in job.present:
            raise ServerError(f"group {ticket.group} of job {ticket.job!r} is not there")
        return job

    def _take_memory(self, table: str, terms: Terms, job: _Job) -> None:
        """Jobs whose groups were all lost make room, the oldest first."""
        if terms.server >= terms.servers:
            raise ProtocolError(f"server {terms.server} is none of {terms.servers} servers: they count from 0")
        needed, what = job.memory_bytes(terms), f"table {table!r}"
        while not job.budget.has(needed) and (abandoned := self._oldest_abandoned(job.budget)):
            self._forget(abandoned)
        job.budget.check(needed, what)
        job.budget.take(needed)

    def _make_room(self) -> None:
        """Raises ServerError if there are too many jobs."""
        if len(self._jobs) < MOST_JOBS:
            return
        abandoned = self._oldest_abandoned(self.budget)
        if abandoned is None:
            raise ServerError(f"this server has {MOST_JOBS} jobs, and takes no more: use another one")
        self._forget(abandoned)

    def _oldest_abandoned(self, budget: Budget) -> str | None:
        """A job whose end gives memory back to a budget."""
        return next((name for name, job in self._jobs.items() if job.abandoned and budget in job.budget.chain), None)

    def _forget(self, job: str) -> None:
        there = self._jobs.pop(job, None)
        if there is not None:
            for table in [*there.tables]:
                there.drop(table)
