"""Cuts layers into parts of about equal time, for the layer (pipeline) strategy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from hybridps.oracle.paradl.work import Work


@dataclass(frozen=True)
class Largest:
    """The largest part in each respect. `cut_items`: the items per sample that pass the widest cut."""

    forward_seconds: float
    backward_seconds: float
    update_seconds: float
    memory_bytes: float
    cut_items: int


def largest_of_parts(work: Work, parts: int, batch: int) -> Largest:
    """Cut the layers, in order, into `parts` so that the longest part is as short as possible."""
    times = work.times
    starts = _starts(tuple(times.passes_seconds.tolist()), parts)
    return Largest(
        _largest(times.forward_seconds, starts),
        _largest(times.backward_seconds, starts),
        _largest(times.update_seconds, starts),
        2 * work.bytes_per_item * _largest(batch * work.activations + work.weights, starts),
        max((work.network.crossing_items[start - 1] for start in starts[1:]), default=0),
    )


@lru_cache(maxsize=256)
def _starts(seconds: tuple[float, ...], parts: int) -> tuple[int, ...]:
    """Return the first layer of each part, found by bisection over the time of the longest part."""
    low, high = max(seconds), sum(seconds)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if len(_greedy(seconds, middle)) <= parts else (middle, high)
    return _greedy(seconds, high)


def _greedy(seconds: Sequence[float], longest: float) -> tuple[int, ...]:
    """Return the first layers of the fewest parts that take at most `longest` each."""
    starts, taken = [0], 0.0
    for index, second in enumerate(seconds):
        if taken + second > longest * (1 + 1e-12) and taken > 0:
            starts.append(index)
            taken = 0.0
        taken += second
    return tuple(starts)


def _largest(values: np.ndarray, starts: Sequence[int]) -> float:
    return float(np.add.reduceat(values, list(starts)).max())
