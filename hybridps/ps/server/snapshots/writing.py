"""The thread that writes snapshots, and the snapshot that it is writing."""

from __future__ import annotations

import errno
import logging
import os
import queue
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np

from hybridps.ps.model import TableSpec
from hybridps.ps.server.snapshots.files import (
    Contents,
    DamagedError,
    TableContents,
    TableFiles,
    reason_of,
    sync,
    write_marker,
)
from hybridps.ps.server.snapshots.folder import ServerFolder

log = logging.getLogger("hybridps.ps")


class Writer:
    """A thread that makes calls in order, and calls `wake` after each. Any thread may hand it calls."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self.ended_seconds: float | None = None
        """When a snapshot was last completed, in seconds of the monotonic clock."""
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._wake = wake
        self._has_failed = False
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="hybridps-snapshots", daemon=True)
        self._thread.start()

    def hand(self, call: Callable[[], None]) -> None:
        """Let the thread make a call."""
        self._calls.put(call)

    def note(self, failure: str | None) -> None:
        """Note that a snapshot is complete or has failed. Failures are reported once, until one is complete again."""
        if failure is None:
            self.ended_seconds = time.monotonic()
        elif not self._has_failed:
            log.warning("%s; training goes on, and the last complete snapshot stays", failure)
        self._has_failed = failure is not None

    def close(self) -> None:
        """End the thread after its current call. A snapshot that is not complete stays so."""
        self._is_closing = True
        self._calls.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (call := self._calls.get()) is not None and not self._is_closing:
            call()
            self._wake()


class Draft:
    """A snapshot of some `tables` (name and spec) that is being written. The writer's thread calls its methods.

    `known`: the names of tables that the job has now, or has dropped. Other tables of the newest snapshot that all
    servers have are carried over: no group has registered them yet since the job started from there.
    """

    def __init__(
        self,
        writer: Writer,
        place: ServerFolder,
        job: str,
        number: int,
        tables: Sequence[tuple[str, TableSpec]],
        known: set[str],
    ) -> None:
        self.is_over = False
        """Whether it is complete or abandoned. Any thread may read it."""
        self.written_bytes = 0
        """The bytes of the chunks written so far. Any thread may read it."""
        self._writer = writer
        self._place = place
        self._job = job
        self._number = number
        self._tables = tables
        self._known = known
        self._folder: Path | None = None
        self._files: list[TableFiles] = []
        self._left = 0

    def begin(self) -> None:
        """Make its files. A snapshot without chunks is complete at once."""
        with self._failing():
            if self._number <= max(self._place.numbers(), default=-1):
                raise FileExistsError(errno.EEXIST, "one of this time or later is there: remove it")
            self._folder = self._place.begin(self._number)
            for index, (name, spec) in enumerate(self._tables):
                self._files.append(TableFiles(self._folder, index, name, self._number, spec))
                self._left += len(self._files[-1].contents.steps)
            if not self._left:
                self._complete()

    def write(self, table: int, place: int, arrays: Sequence[np.ndarray], step: int) -> None:
        """Write the chunk in a place of the table with that index. The last chunk completes the snapshot."""
        if not self.is_over:
            with self._failing():
                self._files[table].write(place, arrays, step)
                self._left -= 1
                if not self._left:
                    self._complete()
        self.written_bytes += sum(array.nbytes for array in arrays)

    def abandon(self) -> None:
        """Give the snapshot up, and remove what exists of it."""
        if self.is_over:
            return
        self._close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self.is_over = True

    def _complete(self) -> None:
        assert self._folder is not None
        for files in self._files:
            files.sync()
        tables = [*(files.contents for files in self._files), *self._carry(self._folder)]
        server, servers = self._tables[0][1].server, self._tables[0][1].servers
        contents = Contents(1, self._number, time.time(), self._job, server, servers, tables)
        write_marker(self._folder, contents)
        self._place.end(self._number, self._folder)
        self._close()
        self.is_over = True
        self._writer.note(None)

    def _carry(self, folder: Path) -> Iterator[TableContents]:
        """Link tables of the snapshot that the job started from that no group has registered yet."""
        last, index = max(self._place.common(), default=None), len(self._files)
        try:
            tables = [] if last is None else self._place.contents(last).tables
        except DamagedError:
            return
        for before, contents in enumerate(tables):
            if contents.name not in self._known and last is not None:
                for old, new in zip(contents.arrays(before), contents.arrays(index), strict=True):
                    _link(self._place.path(last) / old, folder / new)
                yield contents
                index += 1

    def _close(self) -> None:
        for files in self._files:
            files.close()

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Give the snapshot up if the disk fails."""
        try:
            yield
        except (OSError, msgspec.MsgspecError, MemoryError) as error:
            self.abandon()
            self._writer.note(
                f"a snapshot of job {self._job!r} cannot be written to {self._place.folder}: {reason_of(error)}"
            )


def _link(old: Path, new: Path) -> None:
    """Give a file another name; copy it if the file system has no hard links."""
    try:
        os.link(old, new, follow_symlinks=False)
    except OSError:
        shutil.copyfile(old, new, follow_symlinks=False)
        sync(new)
