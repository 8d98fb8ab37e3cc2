"""One way to reduce with any library, the check of its results, and the clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
from mpi4py import MPI

PATTERN = np.arange(13, dtype=np.float32)
"""Its sums stay small integers, which float16 also holds exactly. Its length of 13 divides no chunk size."""

BYTES_PER_TIMING = 4 << 20
MOST_REPEATS = 64
PAUSE_SECONDS = 0.01


def nothing() -> None:
    """Close a contender that holds nothing."""


@dataclass(frozen=True)
class Contender:
    """A name, the arrays that it reduces in place, and the function that reduces them.

    `vectors`: for each vector of the rank, its arrays (one flat array, or one for each tensor).
    """

    name: str
    vectors: Sequence[Sequence[np.ndarray]]
    reduce: Callable[[], None]
    results: Sequence[Sequence[np.ndarray]] = ()
    """The arrays for the sums, in the form of `vectors`, if the contender leaves `vectors` unchanged."""
    elsewhere: Callable[[int], float] | None = None
    """For a contender with processes of its own, which also check it. Called on rank 0 with a number of reductions;
    returns the seconds of one of them."""
    sums_vectors: bool = False
    """Whether all vectors of all ranks become one sum. Otherwise each vector becomes its own sum over the ranks."""
    awake: Callable[[], AbstractContextManager[None]] = nullcontext
    """Entered before the arrays are filled and before the clock starts. It starts and stops background threads."""
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
    """Return the seconds of each contender in each round. They take turns: A B C A B C ..."""
    repeats = max(1, min(MOST_REPEATS, BYTES_PER_TIMING // nbytes))
    seconds: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    for _ in range(rounds):
        for contender in contenders:
            seconds[contender.name].append(time_one(contender, repeats, world))
    return seconds


def meet(world: MPI.Comm, pause_seconds: float = PAUSE_SECONDS) -> None:
    """Wait for all ranks asleep: MPI's own barrier would take the cores from other processes."""
    meeting = world.Ibarrier()
    while not meeting.Test():
        time.sleep(pause_seconds)


def time_one(contender: Contender, repeats: int, world: MPI.Comm) -> float:
    """Return the seconds of one reduction, from when the first rank leaves a barrier until the last rank is done.

    Before several short reductions, one more is not timed, as it follows other contenders. The clock counts from the
    start of the host, which all ranks share.
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
    """Yield each array, with the number of its vector."""
    for number, arrays in enumerate(vectors):
        for array in arrays:
            yield number, array


def _repeated(pattern: np.ndarray, length: int) -> np.ndarray:
    return np.tile(pattern, -(-length // len(pattern)))[:length]
