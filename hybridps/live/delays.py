"""How long the threads of this process wait for a core while they are ready to run."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path


def delayed_seconds() -> dict[str, float]:
    """Return how long each other thread of this process has waited for a core, as Linux counts it; empty elsewhere."""
    found, own = {}, str(threading.get_native_id())
    for path in Path("/proc/self/task").glob("*/schedstat"):
        if path.parent.name == own:
            continue
        with suppress(OSError, IndexError, ValueError):  # a thread that has ended meanwhile
            found[path.parent.name] = int(path.read_text().split()[1]) / 1e9
    return found


def longest_delay(before: Mapping[str, float], now: Mapping[str, float]) -> float:
    """Return how long the thread that waited most did so between two results of `delayed_seconds`; 0 if empty."""
    return max((seconds - before.get(thread, 0.0) for thread, seconds in now.items()), default=0.0)


def own_delayed_seconds() -> float:
    """Return how long the calling thread has waited for a core, as Linux counts it; nan elsewhere."""
    with suppress(OSError, IndexError, ValueError):
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    return math.nan
