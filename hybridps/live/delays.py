"""How long the threads of this process wait for a core while they are ready to run."""

from __future__ import annotations

import math
import os
import threading
import weakref
from collections.abc import Mapping
from contextlib import suppress

_MOST_BYTES = 64
_THREADS = "/proc/self/task"


def delayed_seconds() -> dict[str, float]:
    """Return how long each other thread of this process has waited for a core, as Linux counts it; empty elsewhere."""
    found, own = {}, str(threading.get_native_id())
    for thread in os.listdir(_THREADS) if os.path.isdir(_THREADS) else ():
        if thread != own and (seconds := _delayed_seconds(thread)) is not None:
            found[thread] = seconds
    return found


def longest_delay(before: Mapping[str, float], now: Mapping[str, float]) -> float:
    """Return how long the thread that waited most did so between two results of `delayed_seconds`; 0 if empty."""
    return max((seconds - before.get(thread, 0.0) for thread, seconds in now.items()), default=0.0)


class DelayedSeconds:
    """The time that one thread waits for a core, as Linux counts it. Reading it takes a microsecond."""

    def __init__(self) -> None:
        self._file: int | None = None
        self._seconds = math.nan

    def read(self) -> float:
        """Return how long the calling thread, always the same one, has waited since the last call, in seconds.

        At the first call, and where Linux does not tell: nan.
        """
        if self._file is None:
            with suppress(OSError):
                self._file = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
                weakref.finalize(self, os.close, self._file)
        before = self._seconds
        if self._file is not None:
            self._seconds = _seconds(os.pread(self._file, _MOST_BYTES, 0))
        return self._seconds - before


def _delayed_seconds(thread: str) -> float | None:
    """Return what the file of a thread says; None without it, as when the thread has ended meanwhile."""
    with suppress(OSError, IndexError, ValueError), open(f"{_THREADS}/{thread}/schedstat", "rb", 0) as file:
        return _seconds(file.read(_MOST_BYTES))
    return None


def _seconds(schedstat: bytes) -> float:
    return int(schedstat.split()[1]) / 1e9
