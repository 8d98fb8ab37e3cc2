"""What the compiled rules are made of: they add up the values of a round and update block by block.

A block of every array fits into the second cache together, so that what was read once from memory is still there
when it is written. Values and answers are given by their addresses: one compiled rule serves any number of groups.
What works with addresses is here for other compiled code too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import carray, types
from numba.extending import intrinsic

from hybridps.compiled import compiled

BLOCK = 4096
"""Elements."""

COMPILED = (np.dtype(np.float32), np.dtype(np.float64))
"""Others are computed by NumPy."""


def addresses(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Where the arrays lie; whoever uses the addresses must hold the arrays."""
    return np.array([array.__array_interface__["data"][0] for array in arrays], np.int64)


@intrinsic  # type: ignore[misc]
def _pointer(typing_context: Any, address: Any, like: Any) -> Any:
    """`address` as a pointer to what the array `like` has."""
    kind = types.CPointer(like.dtype)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(kind))

    return kind(types.int64, like), generate


@compiled
def at(address, start, block):  # type: ignore[no-untyped-def]
    """As many elements as `block` has, from element `start` of the array at `address` on."""
    return carray(_pointer(address + start * block.itemsize, block), (block.size,))


@compiled
def add_up_(total, sources, start):  # type: ignore[no-untyped-def]
    """`total` becomes the sum of that part of all sources, added in their order. Up to four in one pass."""
    a = at(sources[0], start, total)
    if len(sources) == 1:
        for i in range(total.size):
            total[i] = a[i]
        return
    b = at(sources[1], start, total)
    if len(sources) == 2:
        for i in range(total.size):
            total[i] = a[i] + b[i]
        return
    c = at(sources[2], start, total)
    if len(sources) == 3:
        for i in range(total.size):
            total[i] = a[i] + b[i] + c[i]
        return
    d = at(sources[3], start, total)
    for i in range(total.size):
        total[i] = a[i] + b[i] + c[i] + d[i]
    for source in sources[4:]:
        e = at(source, start, total)
        for i in range(total.size):
            total[i] += e[i]


@compiled
def add_up_finite_(total, sources, start, look):  # type: ignore[no-untyped-def]
    """As `add_up_`; with `look`, whether the sum has neither NaN nor Inf: that is quick while it is in the cache."""
    add_up_(total, sources, start)
    strange = False
    if look:
        for i in range(total.size):
            strange |= total[i] - total[i] != 0
    return not strange


@compiled
def hand_out_(answer, targets, start):  # type: ignore[no-untyped-def]
    """Write a block of the answer to that part of all targets."""
    for target in targets:
        a = at(target, start, answer)
        for i in range(answer.size):
            a[i] = answer[i]


@compiled
def sum_(total, sources):  # type: ignore[no-untyped-def]
    """The whole of `total` becomes the sum of the sources, one of which it may be."""
    for start in range(0, total.size, BLOCK):
        add_up_(total[start : start + BLOCK], sources, start)
