"""One way to reduce, whichever library it is; the check of its results, and the clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
from mpi4py import MPI

PATTERN = np.arange(13, dtype=np.float32)
"""Sums of it stay small integers, which float16 holds exactly too; 13 fits into no chunk size."""

BYTES_PER_TIMING = 4 << 20
MOST_REPEATS = 64
PAUSE_SECONDS = 0.01


def nothing() -> None:
    """Close a contender that holds nothing."""


@dataclass(frozen=True)
class Contender:
    """A name, the arrays that it works on in place, and the function that reduces them.

    `vectors`: for each vector of the rank, its arrays (one flat one, or one for each tensor).
    """

    name: str
    vectors: Sequence[Sequence[np.ndarray]]
    reduce: Callable[[], None]
    results: Sequence[Sequence[np.ndarray]] = ()
    """Where the sums are, in the form of `vectors`, if the contender leaves those alone."""
    elsewhere: Callable[[int], float] | None = None
    """For a contender with processes of its own, which check it too: called on rank 0, the seconds of one of so many
    reductions."""
    sums_vectors: bool = False
    """All vectors of all ranks become one sum; else each vector becomes its own sum over the ranks."""
    awake: Callable[[], AbstractContextManager[None]] = nullcontext
    """Entered before the arrays are filled and before the clock starts: starts and stops background threads."""
    close: Callable[[], None] = nothing


def check(contender: Contender, world: MPI.Comm) -> None:
    """Reduce known numbers once, then leave zeros, whose sum stays zero. Raises RuntimeError if a sum is wrong."""
    count = len(contender.vectors)
    with contender.awake():
        for number, array in _arrays(contender.vectors):
            np.add(_repeated(PATTERN, array.size), world.rank * count + number, out=array)
        world.Barrier()
        contender.reduce()
    for number, array in _arrays(contender.results or contender.vectors):
        numbers = range(world.size * count) if contender.sums_vectors else range(number, world.size * count, count)
        wanted = _repeated(PATTERN * len(numbers) + sum(numbers), array.size)
        if not np.array_equal(array, wanted):
            at = int(np.argmin(array == wanted))
            raise RuntimeError(
                f"{contender.name} on rank {world.rank}: element {at} of {array.size} of vector {number} "
                f"is {array[at]}, not {wanted[at]}"
            )
    world.Barrier()
    for _, array in _arrays(contender.vectors):
        array[:] = 0


def measure(contenders: Sequence[Contender], nbytes: int, rounds: int, world: MPI.Comm) -> dict[str, list[float]]:
    """Seconds of each contender in each of so many rounds: A B C A B C ..."""
    repeats = max(1, min(MOST_REPEATS, BYTES_PER_TIMING // nbytes))
    seconds: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    for _ in range(rounds):
        for contender in contenders:
            seconds[contender.name].append(time_one(contender, repeats, world))
    return seconds


def meet(world: MPI.Comm, pause_seconds: float = PAUSE_SECONDS) -> None:
    """A barrier that waits asleep: MPI's own would take the cores from other processes."""
    meeting = world.Ibarrier()
    while not meeting.Test():
        time.sleep(pause_seconds)


def time_one(contender: Contender, repeats: int, world: MPI.Comm) -> float:
    """Seconds of one reduction: from when the first rank leaves a barrier until the last one is done.

    Of several short ones the first, after the other contenders, is not timed. The clock counts from the start of the
    host, which all ranks share.
    """
    if contender.elsewhere:
        seconds = contender.elsewhere(repeats) if world.rank == 0 else 0.0
        meet(world)
        return float(world.bcast(seconds))
    with contender.awake():
        if repeats > 1:
            contender.reduce()
        world.Barrier()
        begin = time.monotonic()
        for _ in range(repeats):
            contender.reduce()
        end = time.monotonic()
    return float(world.allreduce(end, MPI.MAX) - world.allreduce(begin, MPI.MIN)) / repeats


def _arrays(vectors: Sequence[Sequence[np.ndarray]]) -> Iterator[tuple[int, np.ndarray]]:
    """Each array, with the number of its vector."""
    for number, arrays in enumerate(vectors):
        for array in arrays:
            yield number, array


def _repeated(pattern: np.ndarray, length: int) -> np.ndarray:
    return np.tile(pattern, -(-length // len(pattern)))[:length]
