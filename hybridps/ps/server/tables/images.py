"""What outlives the server about jobs and tables, besides the values of tables: records that the next process reads."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from hybridps.ps.joining import Terms
from hybridps.ps.model import Admitted, Met, Origin, SnapshotStart, TableSpec

if TYPE_CHECKING:
    from hybridps.ps.server.kept import KeptMemory

_JOB, _TABLE, _STATE, _VALUES = "job ", "table ", "state ", "values "
"""The prefixes of the names of records and arrays. The job and a blank, the digest of the table, or its token follows,
so that no name is the beginning of another one."""


class JobImage(msgspec.Struct, frozen=True, array_like=True):
    """A job: its number of groups, those that are there, those that have gone, those of them that have finished, those
    whose processes have ended and whether they return, the dropped tables, the terms of the job, the groups that may
    join it, and its meetings. See `Job`, `Places` and `Meetings`.
    """

    name: str
    groups: int
    present: set[int]
    gone: set[int]
    finished: set[int]
    returns: dict[int, bool]
    dropped: dict[str, int]
    waits_for_absent: bool
    terms: Terms
    tickets: dict[int, int]
    lives: dict[int, int]
    done: tuple[float, int]
    met: tuple[int, set[int], Met | None, dict[int, Origin]]


class TableImage(msgspec.Struct, frozen=True, array_like=True):
    """A table: the groups that take part in its rounds or wait to (`Rounds`), and its `Registrations`."""

    members: set[int]
    joining: set[int]
    ended: set[int]
    late: set[int]
    expected: set[int]
    dropped: set[int]
    joined: dict[int, Origin]
    admitted: dict[int, Admitted]
    initialiser: int | None
    initial: Origin | None
    ready: bool
    start: SnapshotStart | None = None


class TableName(msgspec.Struct, frozen=True, array_like=True):
    """Identifies a table, with its spec, and a token that names its arrays and was never used before."""

    job: str
    name: str
    spec: TableSpec
    token: str


class KeptJobs:
    """The jobs and tables of a server, in `memory` that outlives the process. The loop keeps them before it answers."""

    def __init__(self, memory: KeptMemory) -> None:
        self._memory = memory
        self._changed: dict[str, Callable[[], msgspec.Struct]] = {}
        """For each changed record, by name, a function that returns its new content."""
        self._forgotten: dict[str, list[str]] = {}
        """For each job, digests of dropped tables. Their records are removed once the job's record, which says that
        they were dropped, is kept."""
        self._found: set[str] = set()
        """The digests of tables of the previous process that have not been made again yet."""
        self._unused: list[str] = []
        """The prefixes of arrays that are not needed any more."""

    def note_job(self, job: str, image: Callable[[], JobImage]) -> None:
        """Note that a job is new or has changed."""
        self._changed[f"{_JOB}{job} "] = image

    def note_table(self, job: str, table: str, image: Callable[[], TableImage]) -> None:
        """Note that the groups of a table have changed."""
        self._changed[_STATE + _digest(job, table)] = image

    def make_table(self, job: str, table: str, spec: TableSpec) -> Callable[[str, int], np.ndarray]:
        """Return a function that gives arrays of a table by name and size: its earlier ones, if it had some."""
        digest = _digest(job, table)
        if digest in self._found:
            self._found.remove(digest)
            made = msgspec.msgpack.decode(self._memory.get(_TABLE + digest) or b"", type=TableName)
        else:
            if digest in self._forgotten.get(job, ()):
                self.keep(idle=False)
            self._forget_records(digest)  # those of a table that could not be made
            made = TableName(job, table, spec, secrets.token_hex(8))
            self._memory.put(_VALUES + made.token, b"")
            self._memory.put(_TABLE + digest, msgspec.msgpack.encode(made))
        return lambda name, nbytes: self._memory.array(f"{_VALUES}{made.token} {name}", nbytes)

    def forget_table(self, job: str, table: str) -> None:
        """Forget a table. This takes effect after the changes of its job are kept."""
        digest = _digest(job, table)
        self._changed.pop(_STATE + digest, None)
        self._forgotten.setdefault(job, []).append(digest)

    def forget_job(self, job: str) -> None:
        """Forget a job and its tables, which were forgotten before."""
        self._changed.pop(f"{_JOB}{job} ", None)
        self._memory.forget(f"{_JOB}{job} ")
        for digest in self._forgotten.pop(job, ()):
            self._forget_records(digest)

    def keep(self, idle: bool) -> None:
        """Write what has changed. `idle`: no thread uses arrays of forgotten tables."""
        changed, self._changed = self._changed, {}
        for key, image in changed.items():
            self._memory.put(key, msgspec.msgpack.encode(image()))
        forgotten, self._forgotten = self._forgotten, {}
        for digest in (digest for digests in forgotten.values() for digest in digests):
            self._forget_records(digest)
        while idle and self._unused:
            self._memory.forget(self._unused.pop())

    def jobs(self) -> Iterator[JobImage]:
        """Return all jobs, as they were kept."""
        for record in self._memory.values(_JOB):
            yield msgspec.msgpack.decode(record, type=JobImage)

    def begun_tables(self) -> Iterator[tuple[TableName, TableImage]]:
        """Return all tables, as they were kept. Tables that were incomplete, dropped, or being read from a snapshot are
        forgotten; the groups register the last kind again.
        """
        used, jobs = set(), {job.name: job for job in self.jobs()}
        for key in self._memory.keys(_TABLE):
            name = msgspec.msgpack.decode(self._memory.get(key) or b"", type=TableName)
            kept = self._memory.get(_STATE + key.removeprefix(_TABLE))
            state = None if kept is None else msgspec.msgpack.decode(kept, type=TableImage)
            is_over = name.job not in jobs or name.name in jobs[name.job].dropped
            if state is None or is_over or (state.start is not None and not state.ready):
                self._forget_records(key.removeprefix(_TABLE))
                continue
            used.add(_VALUES + name.token)
            self._found.add(key.removeprefix(_TABLE))
            yield name, state
        for key in [key for key in self._memory.keys(_VALUES) if key not in used]:
            self._memory.forget(key)

    def _forget_records(self, digest: str) -> None:
        """Forget the records of a table, if there are any, and soon its arrays."""
        known = self._memory.get(_TABLE + digest)
        for key in (_STATE + digest, _TABLE + digest):  # a table without a state was incomplete
            if self._memory.get(key) is not None:
                self._memory.forget(key)
        if known is not None:
            self._unused.append(_VALUES + msgspec.msgpack.decode(known, type=TableName).token)


def _digest(job: str, table: str) -> str:
    """Return the digest that names the records of a table, so that no name is the beginning of another one."""
    return blake2b(f"{job} {table}".encode(), digest_size=16).hexdigest()
