"""Whether all groups of a synchronous job have had the same weights, by digests of the weights. Pure functions."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np


class DivergedError(Exception):
    """Groups that should have the same weights have different ones."""


def digest(values: np.ndarray) -> int:
    """Return a 64-bit digest of the bits of the values."""
    return int.from_bytes(hashlib.blake2b(values.tobytes(), digest_size=8).digest(), "little", signed=True)


def check_chain(lives: Iterable[Sequence[int]]) -> int:
    """Check that the digests of all lives of all groups, step by step, are parts of one sequence. Returns its length.

    Lives need not begin or end together: a group that comes back enters the sequence where the others are. Raises
    DivergedError.

    >>> check_chain([[1, 2, 3, 4], [1, 2], [3, 4]])
    4
    >>> check_chain([[1, 2, 3], [1, 5, 3]])
    Traceback (most recent call last):
        ...
    benchmarks.chaos.chains.DivergedError: after the same weights one group has got others: step 1 of its life
    """
    after: dict[int, int] = {}
    before: dict[int, int] = {}
    firsts, known = set(), set()
    for life in lives:
        known.update(life)
        firsts.update(life[:1])
        for step, (one, other) in enumerate(zip(life, life[1:], strict=False), 1):
            if after.setdefault(one, other) != other or before.setdefault(other, one) != one:
                raise DivergedError(f"after the same weights one group has got others: step {step} of its life")
    begins = {first for first in firsts if first not in before}
    if len(begins) > 1:
        raise DivergedError(f"there are {len(begins)} sequences of weights that never meet")
    return len(known)
