"""What a server knows of one job, and the memory that its tables are charged with. Only the loop uses it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from zlib import crc32

import msgspec

from hybridps.errors import ServerError
from hybridps.ps.clocks import MOST_CELLS, BoundedStale
from hybridps.ps.model import SnapshotStart, TableSpec
from hybridps.ps.server.admission import Budget
from hybridps.ps.server.tables.images import JobImage
from hybridps.ps.server.tables.places import Places
from hybridps.ps.server.tables.table import Table

if TYPE_CHECKING:
    from hybridps.ps.server.snapshots.files import FoundTable
    from hybridps.ps.server.snapshots.folder import SnapshotFolder

CHUNK_BYTES, GROUP_BYTES, KEY_BYTES, TABLE_BYTES, MEMBER_BYTES = 3072, 64, 512, 8192, 256
CELL_BYTES, COUNT_BYTES = 192, 64
"""What Python's objects take, about: for a chunk, a group in each chunk, a key, a table, and a group in it; for a range
of a chunk that a bounded-stale clock counts, and a group there."""


@dataclass
class Job:
    """A job of so many groups: those that are there, those that have gone, and its tables."""

    groups: int
    budget: Budget
    present: set[int] = field(default_factory=set)
    gone: set[int] = field(default_factory=set)
    finished: set[int] = field(default_factory=set)
    """Those of the groups that the job was started with which have gone at the end of their training: they still count,
    so that the groups that train on divide by the same number."""
    returns: dict[int, bool] = field(default_factory=dict)
    """Of the groups whose processes have ended, as far as that is known: whether they are started again."""
    tables: dict[str, Table] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
    """Tables that all groups have dropped, and digests of what they were."""
    lost: dict[int, tuple[int, list[Table]]] = field(default_factory=dict)
    """The groups that were lost and may come back: the epoch and the tables of each."""
    waits_for_absent: bool = True
    """Whether a table waits for a group that has not come yet, to initialise it."""
    may_return: bool = False
    """Whether the group that went last was lost, and its tables are kept."""
    not_back: set[int] = field(default_factory=set)
    """Groups that were there when an earlier process was killed, and have not sent again what was under way."""
    lives: dict[int, int] = field(default_factory=dict)
    """The life of each group that is there, or was."""
    done: tuple[float, int] = (0.0, 0)
    """Epochs and steps that the job has done, as its launcher has told."""
    counted: tuple[int, int] = (0, 0)
    """Groups that are there, expected or finished, and their workers, as of the last change."""

    def __post_init__(self) -> None:
        self.places = Places(self.groups)
        """The numbers of its groups."""

    @property
    def joined(self) -> set[int]:
        """Those of the groups that have joined it, and are there or started again."""
        numbers = self.present | {group for group, back in self.returns.items() if back}
        return {number for number in numbers if number >= self.groups}

    def count(self) -> tuple[int, int]:
        """Count the groups, and their workers."""
        first = {group for group in range(self.groups) if group not in self.gone or self.returns.get(group)}
        if not self.waits_for_absent:
            first &= self.present | self.returns.keys()
        first |= self.finished
        groups = first | self.joined
        self.counted = len(groups), sum(map(self.places.size_of, groups))
        return self.counted

    def is_over(self, may_return: bool) -> bool:
        """Whether no group is there or comes back: they `may_return` unless all are known to have ended."""
        have_ended = self.returns.keys() >= {*range(self.groups)}
        somebody = self.present or self.places.awaited or any(self.returns.values())
        return not somebody and (have_ended or not may_return)

    def note_gone(self, group: int, finished: bool) -> None:
        """A group has gone; `finished`: at the end of its training."""
        self.gone.add(group)
        self.finished.discard(group)
        if finished and group < self.groups:
            self.finished.add(group)

    def note_lost(self, group: int, lost: bool) -> None:
        """A group goes; if it is `lost` it may come back."""
        self.lost.pop(group, None)
        tables = [table for table in self.tables.values() if table.registrations.is_admitted(group)]
        if lost and tables:
            self.lost[group] = tables[0].registrations.joined[group].epoch, tables

    def may_come_back(self, group: int, epoch: int) -> bool:
        """Whether a group that was lost can go on in that life: nobody has its place, and its tables are as it knows.

        Values of free-running tables are as good later; others must not have been computed without it.
        """
        if group in self.present or group not in self.lost or self.lost[group][0] != epoch:
            return False
        return all(self.tables.get(each.name) is each and each.may_come_back(group) for each in self.lost[group][1])

    def image(self, name: str) -> JobImage:
        """What of it outlives the process; it is called `name`."""
        places = self.places
        groups = self.groups, self.present, self.gone, self.finished, self.returns
        waits = self.dropped, self.waits_for_absent
        return JobImage(name, *groups, *waits, places.terms, places.tickets, self.lives, self.done)

    @staticmethod
    def of(image: JobImage, budget: Budget) -> Job:
        """The job that was kept. The groups that were there are awaited."""
        groups = image.present, image.gone, image.finished, image.returns
        job = Job(image.groups, budget, *groups, dropped=image.dropped)
        job.waits_for_absent, job.not_back = image.waits_for_absent, {*image.present}
        job.lives, job.done = image.lives, image.done
        job.places.terms, job.places.tickets = image.terms, image.tickets
        job.places.awaited = {*image.tickets} - image.present - image.gone
        return job


def table_bytes(spec: TableSpec, groups: int, more_arrays: int) -> int:
    """Memory that a table is charged with: its values, `more_arrays` as long, and its records."""
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
    """A number that differs, as good as always, where specs do; the same in all processes."""
    return crc32(msgspec.msgpack.encode(spec))


def find_start(
    snapshots: SnapshotFolder | None, job: str, name: str, spec: TableSpec, start: SnapshotStart | None
) -> FoundTable | None:
    """What a new table starts from. Raises ServerError if it cannot `start` from where the first server says."""
    if start is None and (snapshots is None or spec.server or spec.rule.transparent):
        return None
    if snapshots is None:
        raise ServerError(
            f"the first server starts table {name!r} from a snapshot, and server {spec.server} has no folder of "
            "snapshots: give all servers of the job the same --snapshots"
        )
    return snapshots.find(job, name, spec, None if start is None else start.number)
