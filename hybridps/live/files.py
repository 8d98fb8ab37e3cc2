"""Regularly writes the status of a process to the live folder of its run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from hybridps.events import say
from hybridps.events.log import to_json
from hybridps.files import write_whole
from hybridps.live.status import Status

WRITE_SECONDS = 0.5
"""The time between two writes of a status."""

_WORKERS_PER_SECOND = 400
"""The largest number of writes per second by all processes together, because they may share a file server."""

LARGEST_BYTES = 1 << 18
"""The largest size of a status file. A launcher's has the reports of its workers."""


class StatusFile:
    """A thread that writes what `make` returns to `<folder>/<name>.json`, whole or not at all.

    `processes`: the number of processes that write; the more there are, the less often each of them writes. A status
    never ends a job: if it cannot be written, the thread reports that once on standard error, and ends. If the folder
    is gone, the run is over for whoever made it, and nothing is reported.
    """

    def __init__(self, folder: Path, name: str, make: Callable[[], Status], processes: int = 1) -> None:
        self._path = folder / f"{name}.json"
        self._make = make
        self._began = time.monotonic()
        self._ended = threading.Event()
        self._seconds = max(WRITE_SECONDS, processes / _WORKERS_PER_SECOND)
        self._thread = threading.Thread(target=self._run, name="hybridps-status", daemon=True)
        if self._write():
            self._thread.start()

    def close(self) -> None:
        """Write the last status, which says that the process ended in good order."""
        if self._thread.ident is not None and not self._ended.is_set():
            self._ended.set()
            self._thread.join()
            self._write(ended=True)
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.wait(self._seconds):
            if not self._write():
                return

    def _write(self, ended: bool = False) -> bool:
        status = self._make()
        status.seconds = time.monotonic() - self._began
        status.cpu_seconds = time.process_time()
        status.ended = ended
        try:
            write_whole(self._path, to_json(status))
        except OSError as error:
            told = f"{self._path} cannot be written ({error.strerror}), so `hybridps top` does not show it"
            with suppress(OSError):
                if self._path.parent.exists():
                    say(told)
            return False
        return True
