"""The compiled form of all rules: one loop over the blocks of a chunk, which calls the rule's update on each block.

A block of every array fits into the second-level cache together: what was read once from memory is still there when it
is written. Contributions and answers are given by their addresses, so that one compiled loop serves any number of
groups. `addresses` and `at` serve other compiled code too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from types import FunctionType
from typing import Any

import numpy as np
from numba import carray, types
from numba.extending import intrinsic

from hybridps.compiled import compiled

BLOCK = 4096
"""Elements."""

COMPILED = (np.dtype(np.float32), np.dtype(np.float64))
"""The other dtypes are computed by NumPy."""


def addresses(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """The addresses of the arrays (int64). The caller must hold the arrays while it uses the addresses."""
    return np.array([array.__array_interface__["data"][0] for array in arrays], np.int64)


@intrinsic  # type: ignore[misc]
def _pointer(typing_context: Any, address: Any, like: Any) -> Any:
    """`address` as a pointer to the dtype of the array `like`."""
    kind = types.CPointer(like.dtype)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(kind))

    return kind(types.int64, like), generate


@compiled
def at(address, start, block):  # type: ignore[no-untyped-def]
    """The array at `address` from element `start` on, as long as `block` and of its dtype. Nothing is copied."""
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
def _is_finite(values):  # type: ignore[no-untyped-def]
    """Whether the values have neither NaN nor Inf. Fast while they are in the cache."""
    found = False
    for i in range(values.size):
        found |= values[i] - values[i] != 0
    return not found


@compiled
def _write_(targets, answer, start):  # type: ignore[no-untyped-def]
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


@compiled
def _no_state(state, start, stop):  # type: ignore[no-untyped-def]
    return ()


@compiled
def _one_state(state, start, stop):  # type: ignore[no-untyped-def]
    return (state[0][start:stop],)


@compiled
def _two_states(state, start, stop):  # type: ignore[no-untyped-def]
    return state[0][start:stop], state[1][start:stop]


_STATES = (_no_state, _one_state, _two_states)
"""Compiled code makes tuples of a fixed length only: one function for each number of states."""


def _blocks_(sources, targets, centre, state, numbers, check_finite):  # type: ignore[no-untyped-def]
    """Sum the sources, update and write the answer, block by block. Returns as `apply_` does.

    `update_` and `state_blocks` are global names that `block_loop` binds.
    """
    buffer = np.empty(BLOCK, centre.dtype)
    for start in range(0, centre.size, BLOCK):
        block = centre[start : start + BLOCK]
        total = buffer[: block.size]
        add_up_(total, sources, start)
        if check_finite and not _is_finite(total):
            return start
        states = state_blocks(state, start, start + BLOCK)  # type: ignore[name-defined]  # noqa: F821
        _write_(targets, update_(total, block, states, numbers), start)  # type: ignore[name-defined]  # noqa: F821
    return centre.size


@cache
def block_loop(update_: Any, states: int) -> Callable[..., int]:
    """`_blocks_` compiled for one rule.

    numba keeps no compiled closure over other compiled functions between processes, but it keeps functions with such
    global names, by file, line and name: each rule's loop is a function of its own, which stands where its update does.
    """
    place = update_.py_func
    name = f"{place.__qualname__}.blocks"
    code = _blocks_.__code__.replace(
        co_filename=place.__code__.co_filename, co_firstlineno=place.__code__.co_firstlineno
    )
    loop = FunctionType(code, globals() | {"update_": update_, "state_blocks": _STATES[states]}, _blocks_.__name__)
    loop.__qualname__, loop.__module__ = name, place.__module__
    return compiled(loop)  # type: ignore[no-any-return]
