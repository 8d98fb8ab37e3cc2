"""What the loop does for snapshots: it says when one is due, and which chunk is copied next."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from hybridps.errors import HybridPSError
from hybridps.ps.model import Outcome, Task
from hybridps.ps.server.snapshots.due import DueTimes
from hybridps.ps.server.snapshots.folder import SnapshotFolder
from hybridps.ps.server.snapshots.writing import Draft, Writer
from hybridps.ps.server.tables.jobs import Jobs
from hybridps.ps.server.tables.table import Table

MOST_HELD_BYTES = 32 << 20
"""Of chunks that are copied and not written yet; a single chunk may be larger."""


class Snapshots:
    """Takes snapshots in a folder, whenever one is due in `seconds`. Only the loop uses it.

    `wake`: has the loop look again, from any thread.
    """

    def __init__(self, folder: SnapshotFolder, seconds: float, wake: Callable[[], None]) -> None:
        self.folder = folder
        self._due = DueTimes(seconds, time.time())
        self._writer = Writer(wake)
        self._under_way: Iterator[Task | None] | None = None

    @property
    def age_seconds(self) -> float | None:
        """The time since a snapshot was last completed; None if none was."""
        ended = self._writer.ended_seconds
        return None if ended is None else time.monotonic() - ended

    def look(self, jobs: Jobs) -> list[Task]:
        """The copies of chunks that are to be made now."""
        if self._under_way is None:
            number = self._due.begin(time.time())
            if number is None:
                return []
            self._under_way = self._take(jobs, number)
        tasks: list[Task] = []
        for task in self._under_way:
            if task is None:
                return tasks
            tasks.append(task)
        self._under_way = None
        self._due.end(time.time())
        return tasks

    def close(self) -> None:
        """End. The snapshot under way stays incomplete."""
        self._writer.close()

    def _take(self, jobs: Jobs, number: int) -> Iterator[Task | None]:
        """Copies of all chunks, job by job; None where the loop has to wait."""
        places: dict[tuple[str, int, int], list[Table]] = {}
        for job, table in jobs.tables():
            if not table.spec.rule.transparent:
                places.setdefault((job, table.spec.server, table.spec.servers), []).append(table)
        for (job, server, servers), tables in places.items():
            # One without all tables would be of no use.
            if all(table.registrations.ready and not table.is_freed for table in tables):
                named, place = [(table.name, table.spec) for table in tables], self.folder.of(job, server, servers)
                yield from self._fill(Draft(self._writer, place, job, number, named, jobs.names(job)), tables)

    def _fill(self, draft: Draft, tables: Sequence[Table]) -> Iterator[Task | None]:
        """Copies of the chunks of some tables, a few at a time."""
        self._writer.hand(draft.begin)
        handed_bytes = 0
        for index, table in enumerate(tables):
            for place in range(table.chunks):
                nbytes = 0 if table.is_freed else table.chunk_bytes(place)
                while not draft.is_over and 0 < handed_bytes - draft.written_bytes > MOST_HELD_BYTES - nbytes:
                    yield None
                if table.is_freed:  # a group has dropped it, or the job has ended
                    self._writer.hand(draft.abandon)
                    return
                if draft.is_over:
                    return
                handed_bytes += nbytes
                yield self._copy(draft, index, table, place)
        while not draft.is_over:
            yield None

    def _copy(self, draft: Draft, index: int, table: Table, place: int) -> Task:
        """A worker copies a chunk as it is between two rounds, and hands it to the writer."""
        chunk = table.chunk_in(place)
        memory = chunk.memory

        def run() -> None:
            if memory.is_cut:  # a part of a round that an earlier process began is in it already
                self._writer.hand(draft.abandon)
                return
            arrays = [array.copy() for array in memory.arrays]
            self._writer.hand(partial(draft.write, index, place, arrays, memory.steps))

        def then(result: Any) -> Sequence[Outcome]:
            if isinstance(result, HybridPSError):
                self._writer.hand(draft.abandon)
            return ()

        return Task(chunk.owner, run, then)
