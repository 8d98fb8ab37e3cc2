"""The server without transport: jobs, their tables, and who is to be answered with what.

Driven by calls, one at a time, of the loop. Groups of different jobs never meet.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec

from hybridps.errors import HybridPSError, LayoutError, ProtocolError, ServerError
from hybridps.memory import DTYPES
from hybridps.ps.model import Admitted, Answer, GroupTakenError, Origin, Outcome, TableSpec, Task
from hybridps.ps.server.admission import Budget
from hybridps.ps.server.tables.table import Table

MOST_JOBS = 4096
"""On a server."""

MOST_TABLES = 4096
"""Of a job."""

MOST_ELEMENTS = 1 << 48

CHUNK_BYTES, GROUP_BYTES, KEY_BYTES = 3072, 64, 512
"""What Python's objects for a chunk, a group in each chunk, and a key take, about."""

TABLE_BYTES, MEMBER_BYTES = 8192, 256
"""Of a table, and of a group in it."""

MakeTable = Callable[..., Table]
"""Makes a table: `Table`, or that of a rack server."""


@dataclass
class _Job:
    groups: int
    budget: Budget
    present: set[int] = field(default_factory=set)
    gone: set[int] = field(default_factory=set)
    tables: dict[str, Table] = field(default_factory=dict)
    charged: dict[str, int] = field(default_factory=dict)
    """Memory that each table was charged with."""
    dropped: dict[str, bytes] = field(default_factory=dict)
    """Tables that all groups have dropped, and digests of what they were."""
    waits_for_absent: bool = True
    """Whether a table waits for a group that has not come yet, to initialise it."""

    @property
    def abandoned(self) -> bool:
        return not self.present

    def free(self, name: str) -> Table:
        """Forget a table, and what was brought to its rounds."""
        table = self.tables.pop(name)
        table.forget()
        self.budget.take(-self.charged.pop(name, 0))
        return table


class Jobs:
    """What one server owns of every job, shared out over `threads`.

    `memory_bytes` bounds the memory of all jobs together. `check_finite`: sums refuse NaN and Inf too; other rules
    always do. `make_table`, `more_arrays`: for a rack server, its tables, and how many more arrays each has.
    """

    def __init__(
        self,
        memory_bytes: int | None = None,
        threads: int = 1,
        check_finite: bool = False,
        make_table: MakeTable | None = None,
        more_arrays: int = 0,
    ) -> None:
        self.budget = Budget(memory_bytes)
        """Of all tenants."""
        self._threads = threads
        self._check_finite = check_finite
        self._make_table = make_table
        self._more_arrays = more_arrays
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
            there = self._jobs[job] = _Job(groups, budget or self.budget)
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
        outcomes += self._free_unwanted(there)
        if there.abandoned and (not lost or not there.tables or self._make_table is not None):
            self._forget(job)
        return outcomes

    def begin_without_absent(self, job: str) -> list[Outcome]:
        """Let the groups of `job` that are there initialise tables that wait for one that never came."""
        there = self._jobs.get(job)
        if there is None:
            return []
        there.waits_for_absent = False
        joined = [table.registrations for table in there.tables.values()]
        outcomes = [outcome for each in joined for outcome in each.begin_without_absent(there.present)]
        return [*outcomes, *self._free_unwanted(there)]

    def register(self, origin: Origin, name: str, spec: TableSpec, initialise: bool = False) -> list[Outcome]:
        """Join a table, and make it if it is new. `initialise` as in `Table.register`."""
        job = self._job(origin)
        there = job.tables.get(name)
        if there is not None and there.registrations.abandoned and there.spec != spec:
            job.free(name)
            there = None
        if there is None and name in job.dropped:
            return [self._had(job, origin, name, spec)]
        if there is None:
            return self._begin(job, origin, name, spec, initialise)
        there.spec.check_same(spec, name)
        return there.registrations.register(origin, initialise)

    def drop(self, origin: Origin, name: str) -> list[Outcome]:
        """A group is done with a table; it is freed when all groups are."""
        job, done = self._job(origin), Answer(origin, None)
        if name in job.dropped:
            return [done]
        outcomes = self.table(origin, name).drop(origin.group)
        return [*outcomes, *self._free_unwanted(job), done]

    def settle(self, job: str, group: int, request: int) -> None:
        """The group has all answers to its requests before that one."""
        there = self._jobs.get(job)
        for table in there.tables.values() if there else ():
            table.settle(group, request)

    def check_room(self, origin: Origin, nbytes: int, what: str) -> None:
        """Raise ServerError if the group's tenant may not use so much more memory."""
        budget = self._job(origin).budget
        self.evict_for(budget, nbytes)
        budget.check(nbytes, what)

    def evict_for(self, budget: Budget, nbytes: int) -> None:
        """Forget jobs whose groups were all lost, the oldest first, until there is room if that helps."""
        while (lacking := budget.lacking(nbytes)) and (abandoned := self._oldest_abandoned(lacking)):
            self._forget(abandoned)

    def table(self, origin: Origin, name: str) -> Table:
        """The table of that name of the group's job. Raises ServerError if there is none."""
        table = self._job(origin).tables.get(name)
        if table is None:
            raise ServerError(f"job {origin.job!r} has no table {name!r} here: register it first")
        return table

    def tables(self) -> Iterator[tuple[str, Table]]:
        """All tables, each with its job."""
        return ((name, table) for name, job in self._jobs.items() for table in job.tables.values())

    def _begin(self, job: _Job, origin: Origin, name: str, spec: TableSpec, initialise: bool) -> list[Outcome]:
        """Make a table: its layout is checked on a worker, then its memory is charged, then a worker prepares it."""
        if len(job.tables) >= MOST_TABLES:
            raise ServerError(f"job {origin.job!r} has {MOST_TABLES} tables, and this server takes no more of it")
        return [Task(0, lambda: check_spec(spec), partial(self._checked, origin, name, spec, initialise))]

    def _checked(
        self, origin: Origin, name: str, spec: TableSpec, initialise: bool, result: HybridPSError | None
    ) -> Iterable[Outcome]:
        """The layout can be used, or cannot. Meanwhile another group may have made the table."""
        job = self._jobs.get(origin.job)
        if job is None or origin.group not in job.present:
            return
        try:
            if result is not None:
                raise result
            if name in job.tables:
                yield from self.register(origin, name, spec, initialise)
                return
            table = self._make(job, origin, name, spec)
            yield from table.registrations.register(origin, initialise)
            yield self._preparing(origin.job, name, table)
        except HybridPSError as error:
            yield Answer(origin, None, error=error)

    def _make(self, job: _Job, origin: Origin, name: str, spec: TableSpec) -> Table:
        values = (1 + spec.rule.states + self._more_arrays) * spec.layout.nbytes // spec.servers
        chunks = spec.layout.nbytes // spec.chunk_bytes // spec.servers + 1
        keys = sum(KEY_BYTES + len(slot.key) for slot in spec.layout.slots)
        records = (CHUNK_BYTES + GROUP_BYTES * job.groups) * chunks + keys + TABLE_BYTES + MEMBER_BYTES * job.groups
        self._take_memory(name, values + records, job)
        options = {
            "threads": self._threads,
            "refuses": self._check_finite or not spec.rule.transparent,
            "budget": job.budget,
        }
        try:
            make = self._make_table or (lambda _, *arguments, **options: Table(*arguments, **options))
            table = make(origin.job, name, spec, job.groups, job.gone, **options)
        except BaseException:
            job.budget.take(-values - records)
            raise
        job.tables[name], job.charged[name] = table, values + records
        if not job.waits_for_absent:
            table.registrations.begin_without_absent(job.present)
        return table

    def _preparing(self, job: str, name: str, table: Table) -> Task:
        task = table.prepare()

        def then(result: Any) -> Iterable[Outcome]:
            if isinstance(result, HybridPSError):
                there = self._jobs.get(job)
                if there is not None and there.tables.get(name) is table:
                    there.free(name)
                return table.registrations.refuse(result)
            return task.then(result)

        return Task(task.owner, task.run, then)

    def _had(self, job: _Job, origin: Origin, name: str, spec: TableSpec) -> Admitted:
        if job.dropped[name] != _digest(spec):
            raise LayoutError(f"table {name!r} was registered with another layout, rule or clock, and dropped since")
        return Admitted(origin, initialise=False, dropped=True)

    def _free_unwanted(self, job: _Job) -> list[Outcome]:
        outcomes: list[Outcome] = []
        for name in [name for name, table in job.tables.items() if table.registrations.unwanted]:
            table = job.free(name)
            outcomes += table.freed()
            job.dropped[name] = _digest(table.spec)
            if len(job.dropped) > MOST_TABLES:
                del job.dropped[next(iter(job.dropped))]
        return outcomes

    def _job(self, origin: Origin) -> _Job:
        job = self._jobs.get(origin.job)
        if job is None or origin.group not in job.present:
            raise ServerError(f"group {origin.group} of job {origin.job!r} is not there")
        return job

    def _take_memory(self, table: str, needed: int, job: _Job) -> None:
        self.evict_for(job.budget, needed)
        job.budget.check(needed, f"table {table!r}")
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
            for name in [*there.tables]:
                there.free(name)


def check_spec(spec: TableSpec) -> None:
    """Raise LayoutError, ProtocolError or ServerError unless a spec that came from outside can be used as it is."""
    layout = spec.layout
    if layout.dtype not in DTYPES:
        raise LayoutError(f"dtype {layout.dtype[:32]!r} cannot be used: use one of {', '.join(DTYPES)}")
    if spec.server >= spec.servers:
        raise ProtocolError(f"server {spec.server} is none of {spec.servers} servers: they count from 0")
    elements = 0
    for slot in layout.slots:
        if len(slot.shape) > 32 or any(not 0 <= extent <= MOST_ELEMENTS for extent in slot.shape):
            raise LayoutError(f"key {slot.key[:64]!r} has an unusable shape: at most 32 dimensions, 0 or more")
        size = 1
        for extent in slot.shape:
            size *= extent
        elements += size
    if elements > MOST_ELEMENTS:
        raise LayoutError(f"the layout has {elements} elements: {MOST_ELEMENTS} at most")
    layout.check()
    spec.check()
    spec.chunk_map()


def _digest(spec: TableSpec) -> bytes:
    return hashlib.sha256(msgspec.msgpack.encode(spec)).digest()
