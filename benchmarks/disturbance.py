"""The CPU time of processes that do not belong to a benchmark and disturb it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import psutil

_BUSY = (0, 1, 2, 5, 6, 7)
"""Columns of /proc/stat: user, nice, system, irq, softirq, steal."""


class Disturbance:
    """Observes the host's processors from its creation on."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._before = _others_seconds()

    def share(self) -> float:
        """Return the share of all cores that others used, 0 to 1.

        A process that this one, or a descendant, started must live on or have been waited for.
        """
        seconds = (time.monotonic() - self._began) * (os.cpu_count() or 1)
        return min(1.0, max(0.0, (_others_seconds() - self._before) / seconds))


def _others_seconds() -> float:
    columns = [int(text) for text in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    busy = sum(columns[number] for number in _BUSY) / os.sysconf("SC_CLK_TCK")
    this = psutil.Process()
    return busy - sum(map(_seconds, [this, *this.children(recursive=True)]))


def _seconds(process: psutil.Process) -> float:
    """Return the CPU time of a process and of its children that have ended."""
    try:
        return sum(process.cpu_times()[:4])
    except psutil.NoSuchProcess:
        return 0.0  # it has ended, and counts with its parent
