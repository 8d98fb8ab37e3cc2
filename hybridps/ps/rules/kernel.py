"""The compiled form of all rules: one loop over the blocks of a chunk, which calls the rule's update on each block.

One block of every array together fits into the second-level cache, so that values read from memory are still there when
they are written. Contributions and answers are given by their addresses, so that one compiled loop serves any number of
groups.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import FunctionType
from typing import Any

import numpy as np

from hybridps.codecs.loops import take_
from hybridps.compiled import at, compiled
from hybridps.compiled.ordered import fence, store
from hybridps.compiled.streaming_copy import stream_
from hybridps.ps.rules.progress import LENGTH, WORD, Progress

BLOCK = 4096
"""The number of elements of a block. In float32 a block and its sum fit into the first-level cache."""

KEPT_BLOCK = 8192
"""The same for rounds whose progress is recorded. Fewer blocks are then saved, and the processor reads ahead for longer
in each array."""

COMPILED = (np.dtype(np.float32), np.dtype(np.float64))
"""The dtypes with compiled loops. NumPy computes the others."""


def block_size(progress: Progress | None) -> int:
    """Return the number of elements of a block."""
    return BLOCK if progress is None else min(KEPT_BLOCK, progress.saved.shape[1])


@compiled
def _is_finite(values):  # type: ignore[no-untyped-def]
    """Return whether the values have neither NaN nor Inf. This is fast while they are in the cache."""
    found = False
    for i in range(values.size):
        found |= values[i] - values[i] != 0
    return not found


@compiled
def add_up_(total, sources, start):  # type: ignore[no-untyped-def]
    """Set `total` to the sum of that part of all sources, added in their order, up to four in one pass.

    Returns whether the sum has neither NaN nor Inf; the usual numbers of sources look for them in the same pass.
    Encoded sources have rows with more than the address, and are decoded while the block is in the cache. The compiler
    removes the branch that does not match the type of `sources`.
    """
    if sources.ndim == 2:
        for r in range(len(sources)):
            take_(total, sources[r], start, r > 0)
        return _is_finite(total)
    found = False
    a = at(sources[0], start, total)
    if len(sources) == 1:
        for i in range(total.size):
            value = a[i]
            total[i] = value
            found |= value - value != 0
        return not found
    b = at(sources[1], start, total)
    if len(sources) == 2:
        for i in range(total.size):
            value = a[i] + b[i]
            total[i] = value
            found |= value - value != 0
        return not found
    c = at(sources[2], start, total)
    if len(sources) == 3:
        for i in range(total.size):
            value = a[i] + b[i] + c[i]
            total[i] = value
            found |= value - value != 0
        return not found
    d = at(sources[3], start, total)
    for i in range(total.size):
        total[i] = a[i] + b[i] + c[i] + d[i]
    for source in sources[4:]:
        e = at(source, start, total)
        for i in range(total.size):
            total[i] += e[i]
    return _is_finite(total)


@compiled
def sum_(total, sources):  # type: ignore[no-untyped-def]
    """Set all of `total` to the sum of the sources. `total` may be the first of them."""
    for start in range(0, total.size, BLOCK):
        add_up_(total[start : start + BLOCK], sources, start)


@compiled
def _save_(saved, arrays, first):  # type: ignore[no-untyped-def]
    """Copy blocks of the arrays to the rows of `saved`, from row `first` on."""
    for r in range(first, len(saved)):
        row, array = saved[r], arrays[r]
        for i in range(array.size):
            row[i] = array[i]


@compiled
def _write_(targets, start, answer):  # type: ignore[no-untyped-def]
    """Copy the answer for a block to the targets."""
    for address in targets:
        target = at(address, start, answer)
        for i in range(answer.size):
            target[i] = answer[i]


def _blocks_(  # type: ignore[no-untyped-def]
    sources, before, after, centre, state, numbers, check_finite, streams, progress
):
    """Sum the sources, update and write the answer, block by block. Returns what `apply_` returns.

    The answer for a block is written to the targets `before`, then the block is done, and then to those `after`.
    `state` has two arrays. With `streams` the answer also becomes the centre, which is not read before it is
    written. `progress`: the fields of `Progress`; without progress there are no words. `update_` is a global name that
    `block_loop` binds.
    """
    words, saved, first, saves_sum, is_summed = progress
    length = saved.shape[1] if words.size else BLOCK
    buffer = np.empty(length, centre.dtype)
    for start in range(0, centre.size, length):
        block = centre[start : start + length]
        total = buffer[: block.size]
        if start or not is_summed:
            finite = add_up_(total, sources, start)
        else:
            total[:] = saved[0][: block.size]
            finite = _is_finite(total)
        if check_finite and not finite:
            if streams:
                fence()
            return start
        states = state[0][start : start + length], state[1][start : start + length]
        if words.size:
            _save_(saved, (total, block, states[0], states[1]), 0 if saves_sum else 1)
            words[LENGTH] = block.size
            store(words, WORD, 2 * (first + start + 1) + 1)
        answer = update_(total, block, states, numbers)  # type: ignore[name-defined]  # noqa: F821
        _write_(before, start, answer)
        if streams:
            stream_(block.view(np.uint8), answer.ctypes.data)
        if words.size:
            store(words, WORD, 2 * (first + start + block.size + 1))
        _write_(after, start, answer)
    if streams:
        fence()
    return centre.size


@cache
def block_loop(update_: Any) -> Callable[..., int]:
    """Return `_blocks_` compiled for one rule.

    Numba does not cache a compiled closure over other compiled functions between processes. It does cache functions
    with such global names, by file, line and name. So each rule's loop is a separate function, whose place in the
    source is that of the rule's update.
    """
    place = update_.py_func
    where = {"co_filename": place.__code__.co_filename, "co_firstlineno": place.__code__.co_firstlineno}
    loop = FunctionType(_blocks_.__code__.replace(**where), globals() | {"update_": update_})
    loop.__qualname__, loop.__module__ = f"{place.__qualname__}.blocks", place.__module__
    return compiled(loop)  # type: ignore[no-any-return]
