"""Looks at a run once a second, for all readers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

from hybridps.events import say
from hybridps.live import Live, read_live

LOOK_SECONDS = 1.0
"""The least time between two looks."""

_PROCESSES_PER_SECOND = 500
"""The largest number of statuses to read per second."""


class Reader(Protocol):
    """Follows a run."""

    def look(self, before: Live, now: Live) -> None:
        """Use what the run shows now, and what it showed at the last look. On the watcher's thread."""

    def close(self) -> None:
        """Release everything. There are no more looks."""


class Watcher:
    """A thread that reads the live folder of a run, and passes each look to its readers. A reader that fails is
    dropped; the others and the run go on.
    """

    def __init__(self, folder: Path, readers: Sequence[Reader]) -> None:
        self._folder = folder
        self._readers = list(readers)
        self._before = read_live(folder)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hybridps-watcher", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Take a last look, and close the readers."""
        if self._ended.is_set():
            return
        self._ended.set()
        self._thread.join()
        self._look()
        for reader in list(self._readers):
            self._or_drop(reader, reader.close)

    def _run(self) -> None:
        while not self._ended.wait(max(LOOK_SECONDS, len(self._before.workers) / _PROCESSES_PER_SECOND)):
            self._look()

    def _look(self) -> None:
        before, self._before = self._before, read_live(self._folder)
        for reader in list(self._readers):
            self._or_drop(reader, partial(reader.look, before, self._before))

    def _or_drop(self, reader: Reader, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:  # of any library that a reader uses
            self._readers.remove(reader)
            reason = error.strerror if isinstance(error, OSError) else None
            say(f"{type(reader).__name__} stops: {reason or str(error) or type(error).__name__}")
