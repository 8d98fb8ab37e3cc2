"""One process of a host compiles a function; the others wait for it and load what it has compiled.

Without this, all ranks of a node compile the same loops at the same time, which takes several times as long. Two
processes that write numba's index of a function at the same time would also lose an entry.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

WAIT_SECONDS = 120.0
"""How long to wait for another process before compiling anyway: it may have been stopped."""

_POLL_SECONDS = 0.02


class SharedCache:
    """A cache of one function, in place of `cache`, the one of numba."""

    def __init__(self, cache: Any) -> None:
        self._cache = cache
        self._path = Path(cache.cache_path) / f"{cache._impl.filename_base}.lock"
        self._held: int | None = None
        """The descriptor of the lock while this process compiles."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)

    def load_overload(self, signature: Any, context: Any) -> Any:
        """Return what was compiled for a signature; or None, and then the caller compiles and saves it."""
        found = self._cache.load_overload(signature, context)
        if found is None and self._held is None:
            self._lock()
            found = self._cache.load_overload(signature, context)
            if found is not None:
                self._release()
        return found

    def save_overload(self, signature: Any, compiled: Any) -> None:
        """Keep what was compiled, for other processes too."""
        try:
            self._cache.save_overload(signature, compiled)
        finally:
            self._release()

    def _lock(self) -> None:
        """Take the lock. Without it if the folder cannot be written, or if another process has it for too long."""
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            held = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            end = time.monotonic() + WAIT_SECONDS
            while True:
                try:
                    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    if time.monotonic() > end:
                        os.close(held)
                        return
                    time.sleep(_POLL_SECONDS)
                except OSError:
                    os.close(held)
                    return
                else:
                    self._held = held
                    return

    def _release(self) -> None:
        if self._held is not None:
            os.close(self._held)
            self._held = None
