"""Measures the memory bandwidth and the speed of this machine in one process."""

from __future__ import annotations

import timeit
from collections.abc import Callable

import numpy as np

from hybridps.memory import private_memory

NBYTES = 64 << 20
MATRIX = 1024
ROUNDS = 5


def copy_bytes_per_second() -> float:
    """Return the bytes per second of a copy between two buffers that are larger than the caches."""
    source, target = _buffer(), _buffer()
    return NBYTES / _fastest(lambda: np.copyto(target, source))


def add_bytes_per_second() -> float:
    """Return the bytes per second of `a += b` in float32, the kernel of every reduction."""
    source, target = _buffer(), _buffer()
    return NBYTES / _fastest(lambda: np.add(target, source, out=target))


def matrix_flops() -> float:
    """Return the floating-point operations per second of a product of two float32 matrices."""
    left, right = (np.ones((MATRIX, MATRIX), np.float32) for _ in range(2))
    out = np.empty_like(left)
    return 2 * MATRIX**3 / _fastest(lambda: np.dot(left, right, out=out))


def _buffer() -> np.ndarray:
    buffer = private_memory(NBYTES).view(np.float32)
    buffer[:] = 1  # so that no page is touched for the first time within the measurement
    return buffer


def _fastest(work: Callable[[], object]) -> float:
    return min(timeit.repeat(work, number=1, repeat=ROUNDS))
