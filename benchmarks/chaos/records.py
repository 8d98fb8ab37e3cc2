"""What each worker records about each of its steps, and how the records are read while it trains."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

STEP = np.dtype([("seconds", "f8"), ("step", "i8"), ("digest", "i8")])
"""A step: when it was done, on the monotonic clock, which all processes of a host share, the number of steps done, and
a digest of the weights."""


class Place(NamedTuple):
    """One life of a worker: rank `rank` of group `group`."""

    group: int
    rank: int
    life: int


class Writer:
    """Writes the steps of a worker's life, each one at once, as the worker may be killed at any moment."""

    def __init__(self, folder: Path, place: Place) -> None:
        name = f"steps-{place.group}-{place.rank}-{place.life}"
        self._file = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._step = np.zeros(1, STEP)

    def write(self, seconds: float, step: int, digest: int) -> None:
        """Record a step."""
        self._step[0] = seconds, step, digest
        os.write(self._file, self._step.tobytes())

    def close(self) -> None:
        """Close the file. Call this after the last step."""
        os.close(self._file)


def places(folder: Path) -> list[Place]:
    """Return all lives that have files, ascending."""
    return sorted(Place(*map(int, path.name.split("-")[1:])) for path in folder.glob("steps-*"))


def read(folder: Path, place: Place) -> np.ndarray:
    """Return the steps of a life so far."""
    path = folder / f"steps-{place.group}-{place.rank}-{place.life}"
    steps = path.stat().st_size // STEP.itemsize
    return np.memmap(path, STEP, "r", shape=steps) if steps else np.zeros(0, STEP)


def leaders(folder: Path, group: int | None = None) -> list[Place]:
    """Return the lives of leaders, of one group or of all groups."""
    return [place for place in places(folder) if place.rank == 0 and group in (None, place.group)]


def first_step_after(folder: Path, group: int, seconds: float, life: int = 0) -> float | None:
    """Return when the leader of a group, in this life or later, did its first step after a moment; None: not yet."""
    for place in leaders(folder, group):
        if place.life < life:
            continue
        steps = read(folder, place)["seconds"]
        later = bisect_right(steps, seconds)  # reads a few steps only, as it is called often
        if later < len(steps):
            return float(steps[later])
    return None


def last_step(folder: Path) -> int:
    """Return the largest number of steps that a group has done in its latest life."""
    latest = {place.group: place for place in leaders(folder)}
    return max((int(steps["step"][-1]) for place in latest.values() if len(steps := read(folder, place))), default=0)


def count_steps(folder: Path, spans: Iterable[tuple[float, float]]) -> int:
    """Return the number of steps that the leaders of all groups have done in these spans of time."""
    moments = np.sort(np.concatenate([np.zeros(0), *(read(folder, place)["seconds"] for place in leaders(folder))]))
    return sum(int(np.diff(np.searchsorted(moments, span))[0]) for span in spans)
