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
    """A thread that makes calls one after the other, and calls `wake` after each. Any thread may hand it some."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self.ended_seconds: float | None = None
        """When a snapshot was last completed, of the monotonic clock."""
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._wake = wake
        self._has_failed = False
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="hybridps-snapshots", daemon=True)
        self._thread.start()

    def hand(self, call: Callable[[], None]) -> None:
        """Have the thread make a call."""
        self._calls.put(call)

    def note(self, failure: str | None) -> None:
        """A snapshot is complete, or has failed: that is said once until one is complete again."""
        if failure is None:
            self.ended_seconds = time.monotonic()
        elif not self._has_failed:
            log.warning("%s; training goes on, and the last complete snapshot stays", failure)
        self._has_failed = failure is not None

    def close(self) -> None:
        """End the thread after the call that it makes now. A snapshot that is not complete stays so."""
        self._is_closing = True
        self._calls.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (call := self._calls.get()) is not None and not self._is_closing:
            call()
            self._wake()


class Draft:
    """A snapshot of some `tables` (name and spec) that is being written. Its methods are called by the writer's thread.

    `known`: names of tables that the job has now, or has dropped. Others of the newest snapshot that all servers have
    go on in this one: no group has come to them yet, since the job started from there.
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
        """Whether it is complete, or abandoned. Any thread may read it."""
        self.written_bytes = 0
        """Of the chunks that have come. Any thread may read it."""
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
        """The chunk in a place of the table of that index came. The last one completes the snapshot."""
        if not self.is_over:
            with self._failing():
                self._files[table].write(place, arrays, step)
                self._left -= 1
                if not self._left:
                    self._complete()
        self.written_bytes += sum(array.nbytes for array in arrays)

    def abandon(self) -> None:
        """It will not be completed: what is there of it is removed."""
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
        """Link tables of the snapshot that the job goes on from, to which no group has come yet."""
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
        """Give the snapshot up if the disk does."""
        try:
            yield
        except (OSError, msgspec.MsgspecError, MemoryError) as error:
            self.abandon()
            self._writer.note(
                f"a snapshot of job {self._job!r} cannot be written to {self._place.folder}: {reason_of(error)}"
            )


def _link(old: Path, new: Path) -> None:
    """The same file under another name; a copy where the file system has no such links."""
    try:
        os.link(old, new, follow_symlinks=False)
    except OSError:
        shutil.copyfile(old, new, follow_symlinks=False)
        sync(new)
