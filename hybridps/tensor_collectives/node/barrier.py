"""The barrier of a node, compiled. It reads and writes memory in order, and waits without the interpreter lock.

Each rank has a cache line of int64 words in shared memory, and only that rank writes it. The first word counts its
meetings.
"""

from __future__ import annotations

import numpy as np
from numba import types

from hybridps.compiled import compiled
from hybridps.compiled.ordered import load, store
from hybridps.memory import ALIGNMENT
from hybridps.tensor_collectives.kernels import SUM, accumulate_, combine_, fold, spread

LINE = ALIGNMENT // 8
"""The number of int64 words in a cache line."""

TRIES = 20_000
"""How often a rank reads the counters before it checks the clock."""

NOT_FINITE_WORD = 6
"""The first of two words of a rank's line about its last combination. The first word is a row in which the rank found
NaN or Inf, counted from 1, or 0; the second is the element."""

DONE, NOT_ALL_CAME, NOT_ALL_DONE = 0, 1, 2
"""The results of `meet_and_combine_`."""

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
def combine_and_find_(counters, plan, divisor, rows, work):  # type: ignore[no-untyped-def]
    """Combine rows, and write any NaN or Inf found to the words of this rank. `plan`: from `Node.plan`."""
    mine, op, start, stop, first, last, looks, in_place = plan
    row, element = combine_(rows, op, divisor, (start, stop, first, last, looks), work, in_place)
    counters[mine * LINE + NOT_FINITE_WORD] = row + 1
    counters[mine * LINE + NOT_FINITE_WORD + 1] = element


@compiled
def meet_and_combine_(counters, met, plan, divisor, rows, work):  # type: ignore[no-untyped-def]
    """Meet the other ranks of the node, combine, and meet again. This is one call with few arguments, to save time.

    `met`: the count of the first meeting; the other arguments are those of `combine_and_find_`. Returns `DONE`; or
    `NOT_ALL_CAME` if a rank is missing and nothing was combined; or `NOT_ALL_DONE` if a rank is missing after that.
    """
    mine = plan[0]
    if wait_for_all(counters, mine, met, TRIES) >= 0:
        return NOT_ALL_CAME
    combine_and_find_(counters, plan, divisor, rows, work)
    if wait_for_all(counters, mine, met + 1, TRIES) >= 0:
        return NOT_ALL_DONE
    return DONE


def prepare() -> None:
    """Compile what the barrier and votes need now, while no rank waits. The first call takes seconds."""
    counters = np.zeros(LINE, np.int64)
    cast_vote(counters, 0, 1, 0, 0, 0)
    count_votes(counters, 0, 1, 1, 0)
    wait_for(counters, 0, 1, 1, 0, 1)


def prepare_for(rows: np.ndarray, scratch: np.ndarray) -> None:
    """Compile what works on rows of this dtype, here and in `kernels`."""
    meet_and_combine_(np.zeros(LINE, np.int64), 0, np.array([0, SUM, 0, 0, 0, 0, 0, 0]), 1.0, rows, scratch)
    fold(rows, SUM, 0, 0, scratch)
    spread(scratch, 1.0, rows, 0, 0, 0, 0)
    accumulate_(scratch[:0], scratch[:0], SUM)
