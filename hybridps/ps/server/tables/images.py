"""What of jobs and tables outlives their server, beside the values of tables: records, which the next process reads."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from hybridps.ps.joining import Terms
from hybridps.ps.model import Admitted, Origin, SnapshotStart, TableSpec

if TYPE_CHECKING:
    from hybridps.ps.server.kept import KeptMemory

_JOB, _TABLE, _STATE, _VALUES = "job ", "table ", "state ", "values "
"""What the names of records and arrays begin with. After it comes the job and a blank, the digest of the table, or its
token: no name of one begins with that of another."""


class JobImage(msgspec.Struct, frozen=True, array_like=True):
    """A job: its number of groups, those that are there, those that have gone and whether they return, the tables that
    were dropped, what all groups say of it, and the groups that may join it. See `Job` and `Places`."""

    name: str
    groups: int
    present: set[int]
    gone: set[int]
    returns: dict[int, bool]
    dropped: dict[str, int]
    waits_for_absent: bool
    terms: Terms
    tickets: dict[int, int]
    lives: dict[int, int]
    done: tuple[float, int]


class TableImage(msgspec.Struct, frozen=True, array_like=True):
    """A table: who takes part in its rounds, or waits to, and who has joined it. See `Rounds` and `Registrations`."""

    members: set[int]
    joining: set[int]
    expected: set[int]
    dropped: set[int]
    joined: dict[int, Origin]
    admitted: dict[int, Admitted]
    initialiser: int | None
    initial: Origin | None
    ready: bool
    start: SnapshotStart | None = None


class TableName(msgspec.Struct, frozen=True, array_like=True):
    """Which table, what its groups have agreed on, and a token that names its arrays: no table had it before."""

    job: str
    name: str
    spec: TableSpec
    token: str


class KeptJobs:
    """The jobs and tables of a server in `memory` that outlives the process. The loop notes changes, and keeps them
    before it tells anybody."""

    def __init__(self, memory: KeptMemory) -> None:
        self._memory = memory
        self._changed: dict[str, Callable[[], msgspec.Struct]] = {}
        """By the name of the record, what it is to become."""
        self._unused: list[str] = []
        """Names of arrays that are not needed any more begin so."""

    def note_job(self, job: str, image: Callable[[], JobImage]) -> None:
        """A job is new, or has changed."""
        self._changed[f"{_JOB}{job} "] = image

    def note_table(self, job: str, table: str, image: Callable[[], TableImage]) -> None:
        """Who takes part in a table has changed."""
        self._changed[_STATE + _digest(job, table)] = image

    def make_table(self, job: str, table: str, spec: TableSpec) -> Callable[[str, int], np.ndarray]:
        """What gives arrays of a table, by name and size: those that it had, if it was kept."""
        key = _TABLE + _digest(job, table)
        known = self._memory.get(key)
        if known is None:
            made = TableName(job, table, spec, secrets.token_hex(8))
            self._memory.put(_VALUES + made.token, b"")
            self._memory.put(key, msgspec.msgpack.encode(made))
        else:
            made = msgspec.msgpack.decode(known, type=TableName)
        return lambda name, nbytes: self._memory.array(f"{_VALUES}{made.token} {name}", nbytes)

    def forget_table(self, job: str, table: str) -> None:
        """A table is not needed any more."""
        key = _digest(job, table)
        known = self._memory.get(_TABLE + key)
        self._changed.pop(_STATE + key, None)
        for kind in (_STATE, _TABLE):  # a table without a state was not wholly made
            self._memory.forget(kind + key)
        if known is not None:
            self._unused.append(_VALUES + msgspec.msgpack.decode(known, type=TableName).token)

    def forget_job(self, job: str) -> None:
        """A job is not needed any more, nor are its tables, which were forgotten before."""
        self._changed.pop(f"{_JOB}{job} ", None)
        self._memory.forget(f"{_JOB}{job} ")

    def keep(self, idle: bool) -> None:
        """Write what has changed. `idle`: no thread uses arrays of tables that were forgotten."""
        changed, self._changed = self._changed, {}
        for key, image in changed.items():
            self._memory.put(key, msgspec.msgpack.encode(image()))
        while idle and self._unused:
            self._memory.forget(self._unused.pop())

    def jobs(self) -> Iterator[JobImage]:
        """All jobs, as they were kept."""
        for record in self._memory.values(_JOB):
            yield msgspec.msgpack.decode(record, type=JobImage)

    def begun_tables(self) -> Iterator[tuple[TableName, TableImage]]:
        """All tables, as they were kept, but for those that were just being read from a snapshot: these are forgotten,
        as their groups ask again."""
        for name, state in self.tables():
            if state.start is not None and not state.ready:
                self.forget_table(name.job, name.name)
            else:
                yield name, state

    def tables(self) -> Iterator[tuple[TableName, TableImage]]:
        """All tables, as they were kept; what was not wholly made is forgotten."""
        used = set()
        for key in self._memory.keys(_TABLE):
            name = msgspec.msgpack.decode(self._memory.get(key) or b"", type=TableName)
            state = self._memory.get(_STATE + key.removeprefix(_TABLE))
            if state is None or self._memory.get(f"{_JOB}{name.job} ") is None:
                self._memory.forget(key)
                continue
            used.add(_VALUES + name.token)
            yield name, msgspec.msgpack.decode(state, type=TableImage)
        for key in [key for key in self._memory.keys(_VALUES) if key not in used]:
            self._memory.forget(key)


def _digest(job: str, table: str) -> str:
    """By what the records of a table are named: no such name begins with another one."""
    return blake2b(f"{job} {table}".encode(), digest_size=16).hexdigest()
