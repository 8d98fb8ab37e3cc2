"""How tables are made and freed: what a spec may say, the memory that a table is charged for, what it starts from."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING
from zlib import crc32

import msgspec

from hybridps.errors import HybridPSError, LayoutError, ProtocolError, ServerError
from hybridps.memory import DTYPES
from hybridps.ps.clocks import MOST_CELLS, BoundedStale
from hybridps.ps.joining import MOST_JOINED
from hybridps.ps.model import Answer, Origin, Outcome, SnapshotStart, TableSpec, Task
from hybridps.ps.rules import warm_up
from hybridps.ps.server.admission import Budget
from hybridps.ps.server.tables.images import KeptJobs, TableImage
from hybridps.ps.server.tables.job import Job
from hybridps.ps.server.tables.table import Table
from hybridps.ps.server.workers import as_refusal

if TYPE_CHECKING:
    from hybridps.ps.server.snapshots.files import FoundTable
    from hybridps.ps.server.snapshots.folder import SnapshotFolder

MOST_TABLES = 4096
"""The number of tables of a job."""

MOST_ELEMENTS = 1 << 48
"""The number of elements of a table."""

CHUNK_BYTES, GROUP_BYTES, KEY_BYTES, TABLE_BYTES, MEMBER_BYTES = 3072, 64, 512, 8192, 256
CELL_BYTES, COUNT_BYTES = 192, 64
"""About the memory of Python's objects: for a chunk, a group in each chunk, a key, a table, and a group in it; for a
range of a chunk that a bounded-stale clock counts, and a group there."""


class TableMaker:
    """Makes and frees the tables of all jobs of a server.

    `make_table`, `threads`, `refuses`, `kept`, `snapshots`: see `Jobs`. `make_room`: frees bytes of a budget if
    possible.
    """

    def __init__(
        self,
        make_table: type[Table],
        threads: int,
        refuses: bool,
        kept: KeptJobs | None,
        snapshots: SnapshotFolder | None,
        make_room: Callable[[Budget, int], None],
    ) -> None:
        self._make_table = make_table
        self._threads = threads
        self._refuses = refuses
        self._kept = kept
        self._snapshots = snapshots
        self._make_room = make_room

    @property
    def is_root(self) -> bool:
        """Whether the server is no rack server, so that its tables are here and nowhere else."""
        return self._make_table is Table

    def begin(
        self,
        origin: Origin,
        name: str,
        spec: TableSpec,
        start: SnapshotStart | None,
        there: Callable[[], Job | None],
        register: Callable[[], Sequence[Outcome]],
    ) -> Task:
        """Return a task in which a worker thread checks the layout, compiles the rule and looks for a snapshot, all of
        which may take long. The table is then made if its job is still `there`. `register` returns the outcomes.
        """

        def run() -> FoundTable | None:
            check_spec(spec)
            warm_up(spec.rule, spec.layout.dtype, spec.codec)
            return _find_start(self._snapshots, origin.job, name, spec, start)

        def then(found: FoundTable | HybridPSError | None) -> Sequence[Outcome]:
            job = there()
            if job is None:
                return []
            try:
                if isinstance(found, HybridPSError):
                    raise found
                first: list[Outcome] = []
                if name not in job.tables and name not in job.dropped:  # another group may have been here meanwhile
                    table = self.make(job, name, spec)
                    first = [Task(0, table.gather, lambda result: ())]
                    if found is not None:
                        from_there = start or SnapshotStart(found.number, secrets.randbits(62))
                        first += table.begin_from(from_there, found.read, partial(self._give_up, job, table))
                return [*first, *register()]
            except Exception as refused:  # including errors because the system has no memory
                return [Answer(origin, None, error=as_refusal(refused))]

        return Task(0, run, then)

    def make(self, job: Job, name: str, spec: TableSpec) -> Table:
        """Make a table of a job. Raises ServerError if there is no room for it."""
        if len(job.tables) >= MOST_TABLES:
            raise ServerError(f"job {job.name!r} has {MOST_TABLES} tables, and this server takes no more of it")
        nbytes = table_bytes(spec, job.groups, self._make_table.more_arrays)
        self._make_room(job.budget, nbytes)
        job.budget.check(nbytes, f"table {name!r}")
        refuses, members = self._refuses or not spec.rule.transparent, job.members
        keep = None if self._kept is None else (self._kept.make_table(job.name, name, spec), job.groups + MOST_JOINED)
        table = self._make_table(job.name, name, spec, members, self._threads, refuses, job.budget, keep)
        if (kept := self._kept) is not None:
            joined = table.registrations
            joined.on_change = lambda: kept.note_table(job.name, name, lambda: joined.image)
        if not job.waits_for_absent:
            table.registrations.begin_without_absent(job.present)
        job.budget.take(nbytes)
        job.tables[name] = table
        return table

    def restore(self, job: Job, name: str, spec: TableSpec, state: TableImage) -> None:
        """Make a table of an earlier process again. Raises ServerError if its rule cannot be loaded."""
        warm_up(spec.rule, spec.layout.dtype, spec.codec)
        table = self.make(job, name, spec)
        table.restore(state)
        table.rounds.held = bool(job.not_back)

    def free(self, job: Job, name: str) -> list[Outcome]:
        """Free a table, and what was contributed to its rounds."""
        table = job.tables.pop(name)
        if self._kept is not None:
            self._kept.forget_table(job.name, name)
        job.budget.take(-table_bytes(table.spec, job.groups, self._make_table.more_arrays))
        return table.free()

    def free_unwanted(self, job: Job) -> list[Outcome]:
        """Free the tables that all groups have had and dropped."""
        outcomes: list[Outcome] = []
        for name in [name for name, table in job.tables.items() if table.registrations.unwanted]:
            job.dropped[name] = digest(job.tables[name].spec)
            outcomes += self.free(job, name)
            if len(job.dropped) > MOST_TABLES:
                del job.dropped[next(iter(job.dropped))]
        return outcomes

    def _give_up(self, job: Job, table: Table, error: HybridPSError) -> list[Outcome]:
        """Free a table that cannot start from its snapshot, and tell the groups that wait for it."""
        waiting = [*table.registrations.joined.values()]
        return [*self.free(job, table.name), *(Answer(origin, None, error=error) for origin in waiting)]


def check_spec(spec: TableSpec) -> None:
    """Raise LayoutError, ProtocolError or ServerError unless a spec from outside can be used as it is."""
    layout = spec.layout
    if layout.dtype not in DTYPES:
        raise LayoutError(f"dtype {layout.dtype[:32]!r} cannot be used: use one of {', '.join(DTYPES)}")
    if spec.server >= spec.servers:
        raise ProtocolError(f"server {spec.server} is none of {spec.servers} servers: they count from 0")
    for slot in layout.slots:
        if len(slot.shape) > 32 or any(not 0 <= extent <= MOST_ELEMENTS for extent in slot.shape):
            raise LayoutError(f"key {slot.key[:64]!r} has an unusable shape: at most 32 dimensions, 0 or more")
    elements = sum(math.prod(slot.shape) for slot in layout.slots)
    if elements > MOST_ELEMENTS:
        raise LayoutError(f"the layout has {elements} elements: {MOST_ELEMENTS} at most")
    layout.check()
    spec.check()
    spec.chunk_map()


def table_bytes(spec: TableSpec, groups: int, more_arrays: int) -> int:
    """Return the memory that a table is charged for: its values, `more_arrays` of the same length, and its records."""
    arrays = 1 + spec.rule.states + more_arrays
    chunk_map = spec.chunk_map()
    owned = len(chunk_map.owned_between(spec.server, 0, spec.layout.length))
    values = arrays * min(owned * chunk_map.step, spec.layout.length) * spec.layout.itemsize
    chunks = owned + 1
    if isinstance(spec.clock, BoundedStale):
        cells = min(MOST_CELLS, spec.chunk_bytes // spec.layout.itemsize)
        values += chunks * cells * (CELL_BYTES + COUNT_BYTES * min(groups, 8))
    keys = sum(KEY_BYTES + len(slot.key) for slot in spec.layout.slots)
    return values + (CHUNK_BYTES + GROUP_BYTES * groups) * chunks + keys + TABLE_BYTES + MEMBER_BYTES * groups


def digest(spec: TableSpec) -> int:
    """Return a number that is the same in all processes for equal specs, and almost certainly differs for others."""
    return crc32(msgspec.msgpack.encode(spec))


def _find_start(
    snapshots: SnapshotFolder | None, job: str, name: str, spec: TableSpec, start: SnapshotStart | None
) -> FoundTable | None:
    """Return what a new table starts from. Raises ServerError if it cannot `start` from where the first server says."""
    is_lead = spec.server == spec.chunk_map().lead
    if start is None and (snapshots is None or not is_lead or spec.rule.transparent):
        return None
    if snapshots is None:
        raise ServerError(
            f"the first server starts table {name!r} from a snapshot, and server {spec.server} has no folder of "
            "snapshots: give all servers of the job the same --snapshots"
        )
    return snapshots.find(job, name, spec, None if start is None else start.number)


def check_same_spec(job: Job, name: str, spec: TableSpec) -> None:
    """Raise LayoutError if a table that all groups have dropped had another spec."""
    if job.dropped[name] != digest(spec):
        raise LayoutError(f"table {name!r} was registered with another layout, rule or clock, and dropped since")
