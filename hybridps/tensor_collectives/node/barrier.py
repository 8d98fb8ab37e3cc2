"""The barrier of a node, compiled. It reads and writes memory in order, and waits without the interpreter lock.

Each rank has a cache line of int64 words in shared memory, and only that rank writes it. The first word counts its
meetings.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numba import types

from hybridps.compiled import array_at, compiled, compiled_for, words_at
from hybridps.compiled.ordered import load, store
from hybridps.memory import ALIGNMENT
from hybridps.tensor_collectives.kernels import SUM, accumulate_, combine_, fold, spread, work_at

LINE = ALIGNMENT // 8
"""The number of int64 words in a cache line."""

TRIES = 20_000
"""How often a rank reads the counters before it checks the clock."""

NOT_FINITE_WORD = 6
"""The first of two words of a rank's line about its last combination. The first word is a row in which the rank found
NaN or Inf, counted from 1, or 0; the second is the element."""

FIRST_MEETING, SECOND_MEETING = 1, 2
"""Which meeting of `meet_and_combine` a rank did not come to; 0 if all ranks came to both."""

PLAN_WORDS = 16
"""The number of int64 words of a plan, which says what is combined."""
COUNTERS, RANKS, MINE = 0, 1, 2
"""The words of a plan with the address of the lines of all ranks, how many these are, and this rank."""
OPERATION, START, STOP, FIRST, LAST, LOOKS = 3, 4, 5, 6, 7, 8
"""The operation (of `kernels.CODE`), this rank's part of the elements, the first and the last + 1 of the rows that get
the result, and whether NaN and Inf are looked for."""
ROWS, COUNT, LENGTH = 9, 10, 11
"""The address of the rows, and their shape."""
WORK, WORK_SIZE, IN_PLACE = 12, 13, 14
"""The memory in which blocks are combined, and whether it is row 0."""
DIVISOR = 15
"""The word with the bits of the divisor, a float64."""

_yield = types.ExternalFunction("sched_yield", types.int32())


@compiled
def wait_for(counters, mine, target, tries, first, last):  # type: ignore[no-untyped-def]
    """Set the counter of rank `mine` to `target`, and wait until those of ranks `first:last` have reached it.

    `counters`: the lines of all ranks. Returns -1, or the first missing rank if the counters were read `tries` times in
    vain.
    """
    store(counters, mine * LINE, target)
    missing = -1
    for look in range(tries):
        missing = -1
        for rank in range(first, last):
            if load(counters, rank * LINE) < target:
                missing = rank
                break
        if missing < 0:
            return missing
        if look > 200:
            _yield()
    return missing


@compiled
def wait_for_all(counters, mine, target, tries):  # type: ignore[no-untyped-def]
    """Do the same as `wait_for`, for the counters of all ranks."""
    return wait_for(counters, mine, target, tries, 0, len(counters) // LINE)


@compiled
def cast_vote(counters, mine, target, word, low, high):  # type: ignore[no-untyped-def]
    """Write `low` and `high` to words `word` and `word + 1` of rank `mine`, then set its counter to `target`."""
    counters[mine * LINE + word] = low
    counters[mine * LINE + word + 1] = high
    store(counters, mine * LINE, target)


@compiled
def count_votes(counters, mine, target, tries, word):  # type: ignore[no-untyped-def]
    """Wait as `wait_for_all` does. Returns the first missing rank or -1, the smallest low, and the largest high."""
    missing = wait_for_all(counters, mine, target, tries)
    low, high = counters[word], counters[word + 1]
    for rank in range(1, len(counters) // LINE):
        low = min(low, counters[rank * LINE + word])
        high = max(high, counters[rank * LINE + word + 1])
    return missing, low, high


@compiled
def _combine_and_find(plan, like):  # type: ignore[no-untyped-def]
    """Combine rows, and write any NaN or Inf found to the words of this rank."""
    words = words_at(plan, PLAN_WORDS)
    rows = array_at(words[ROWS], (words[COUNT], words[LENGTH]), like)
    work = work_at(words[WORK], words[WORK_SIZE], like)
    divisor = array_at(plan + 8 * DIVISOR, (1,), 1.0)[0]
    part = (words[START], words[STOP], words[FIRST], words[LAST], words[LOOKS])
    row, element = combine_(rows, words[OPERATION], divisor, part, work, words[IN_PLACE])
    line = words_at(words[COUNTERS] + words[MINE] * ALIGNMENT, LINE)
    line[NOT_FINITE_WORD] = row + 1
    line[NOT_FINITE_WORD + 1] = element


@compiled
def _meet_and_combine(plan, met, like):  # type: ignore[no-untyped-def]
    words = words_at(plan, PLAN_WORDS)
    counters, mine = words_at(words[COUNTERS], words[RANKS] * LINE), words[MINE]
    if wait_for_all(counters, mine, met, TRIES) >= 0:
        return FIRST_MEETING
    _combine_and_find(plan, like)
    if wait_for_all(counters, mine, met + 1, TRIES) >= 0:
        return SECOND_MEETING
    return 0


@lru_cache
def meet_and_combine(dtype: np.dtype) -> Callable[[int, int, float], int]:
    """Return the function that meets the other ranks of a node, combines rows of `dtype`, and meets again.

    Its arguments: the address of a plan, the count of the first meeting, and 0. A small allreduce is one call of it,
    and arrays as arguments would take longer than the sum. It returns 0; or `FIRST_MEETING` if a rank did not come in
    time and nothing was combined; or `SECOND_MEETING` if one did not come after that.
    """
    return compiled_for(_meet_and_combine, "int64", "int64", dtype)


def prepare() -> None:
    """Compile what the barrier and votes need now, while no rank waits. The first call takes seconds."""
    counters = np.zeros(LINE, np.int64)
    cast_vote(counters, 0, 1, 0, 0, 0)
    count_votes(counters, 0, 1, 1, 0)
    wait_for(counters, 0, 1, 1, 0, 1)


def prepare_for(rows: np.ndarray, scratch: np.ndarray) -> None:
    """Compile what works on rows of this dtype, here and in `kernels`."""
    meet_and_combine(rows.dtype)
    fold(rows, SUM, 0, 0, scratch)
    spread(scratch, 1.0, rows, 0, 0, 0, 0)
    accumulate_(scratch[:0], scratch[:0], SUM)
