"""How long the threads of this process wait for a core while they are ready to run."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path


def delayed_seconds() -> dict[str, float]:
    """Return how long each other thread of this process has waited for a core, as Linux counts it; empty elsewhere."""
    found, own = {}, str(threading.get_native_id())
    for path in Path("/proc/self/task").glob("*/schedstat"):
        if path.parent.name != own and (seconds := _delayed_seconds(path)) is not None:
            found[path.parent.name] = seconds
    return found


def longest_delay(before: Mapping[str, float], now: Mapping[str, float]) -> float:
    """Return how long the thread that waited most did so between two results of `delayed_seconds`; 0 if empty."""
    return max((seconds - before.get(thread, 0.0) for thread, seconds in now.items()), default=0.0)


def own_delayed_seconds() -> float | None:
    """Return how long the calling thread has waited for a core, as Linux counts it; None elsewhere."""
    return _delayed_seconds(Path("/proc/thread-self/schedstat"))


def _delayed_seconds(path: Path) -> float | None:
    """Return what the file of a thread says; None without it, as when the thread has ended meanwhile."""
    with suppress(OSError, IndexError, ValueError):
        return int(path.read_text().split()[1]) / 1e9
    return None
