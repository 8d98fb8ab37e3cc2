"""Shared memory, barrier, votes and reductions for the ranks of a node."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from hybridps.errors import DeadlineError, GroupError, LayoutError
from hybridps.memory import ALIGNMENT, address_of, private_memory
from hybridps.mpi_groups.group import Group, rank_ended
from hybridps.shared_memory import attach_shared, create_shared, gather, shared_memory, shared_name
from hybridps.tensor_collectives.node import barrier
from hybridps.tensor_collectives.node.barrier import LINE, NOT_FINITE_WORD, TRIES, cast_vote, count_votes, wait_for
from hybridps.tensor_collectives.node.futex import wait_for_change, wake

if TYPE_CHECKING:
    from hybridps.tensor_collectives.tensor import Rows

GIVEN_UP = -1
LEFT = -1
"""The progress word of a rank that has left and takes part in no further operation."""

SLEEP_SECONDS = 0.05
"""How long a rank sleeps before it checks the clock."""

VOTE_TRIES = 300
"""How often a vote reads the counters before it sleeps: for about 20 microseconds."""

VOTE_WORD = 2
"""The first of four words of a rank's line: low and high of its last vote with an even number, and of its last vote
with an odd number."""


@dataclass(frozen=True, slots=True)
class Reduction:
    """A combination of rows, which can be repeated."""

    run: Callable[[int, int, float], int]
    """The compiled function of `barrier.meet_and_combine`."""
    plan: int
    """The address of its plan."""
    memory: tuple[np.ndarray, ...]
    """The plan, and the memory that it names by addresses."""


class Node:
    """Shared memory and a barrier for the ranks of `group`, which all run on one host.

    `names`: the ranks' numbers in the larger group, for messages. `alone`: whether this is the only node; then even a
    single rank shares its memory, with servers on the host. Raises LayoutError, on all ranks, if the ranks cannot share
    memory.
    """

    def __init__(self, group: Group, names: Sequence[int], deadline_seconds: float, alone: bool = False) -> None:
        self.group = group
        self._alone = alone
        self.names = names
        self.rank = group.rank
        self.size = group.size
        self.deadline_seconds = deadline_seconds
        self._counters = self._share(self.size * ALIGNMENT).view(np.int64)
        """A line for each rank, which only that rank writes: the count of its meetings, or `GIVEN_UP`; its progress in
        an operation; its last two votes; and where it found NaN or Inf."""
        self._address = address_of(self._counters)
        self.awaited: int | None = None
        """The rank that this one is waiting for, as another thread may read; None while it waits for nobody."""
        self._met = 0
        self._votes = 0
        barrier.prepare()

    def rows(self, length: int, dtype: np.dtype, vectors: Sequence[int]) -> np.ndarray:
        """Return zeros of shape (sum of vectors, at least length) in shared memory. All ranks call this.

        `vectors`: the number of rows of each rank. Rows begin at multiples of `ALIGNMENT` bytes. Raises LayoutError, on
        all ranks, if the memory cannot be allocated.
        """
        step = ALIGNMENT // dtype.itemsize
        padded = -(-length // step) * step
        everything = self._share(sum(vectors) * padded * dtype.itemsize).view(dtype)
        rows = everything.reshape(sum(vectors), padded)
        first = sum(vectors[: self.rank])
        gather(rows[first : first + vectors[self.rank]])
        rows[first : first + vectors[self.rank]] = 0  # the first rank to write a page gets it in its own NUMA node
        self.meet("the first use of shared memory")
        return rows

    def meet(self, what: str = "a collective", asleep: bool = False, patience_seconds: float = 0.0) -> None:
        """Wait at a barrier until all ranks of the node have called `meet` or `arrive`.

        Raises DeadlineError that names a missing rank, or GroupError if a rank has given up. `asleep`: sleep instead of
        spinning, because the wait is long and others need the cores. `patience_seconds` is added to the deadline, so
        that a rank that knows more reports first.
        """
        if asleep:
            self.arrive()
        else:
            self._met += 1
        self._wait(self._met, what, asleep, patience_seconds)

    def arrive(self) -> None:
        """Count this rank as having met, wake the ranks that wait for it, and return at once."""
        self._met += 1
        wait_for(self._counters, self.rank, self._met, 0, 0, 0)
        self._wake()

    def wait_for_rank(self, rank: int, what: str) -> None:
        """Wait asleep until rank `rank` has met or arrived, whatever the others do. This rank counts as met."""
        self.arrive()
        self._wait(self._met, what, asleep=True, only=rank)

    def vote(self, low: int, high: int, patience_seconds: float = 0.0) -> tuple[int, int]:
        """Return the smallest `low` and the largest `high` over the ranks of the node. All ranks call this.

        It sleeps after a short spin. Raises the errors of `meet`.
        """
        if self.size == 1:
            return low, high
        self._met += 1
        self._votes += 1
        # A rank writes these words again in the vote after the next one. That vote begins only when all ranks are in
        # the next one, and have therefore read these words.
        word = VOTE_WORD + 2 * (self._votes % 2)
        cast_vote(self._counters, self.rank, self._met, word, low, high)
        self._wake()
        missing, lowest, highest = count_votes(self._counters, self.rank, self._met, VOTE_TRIES, word)
        if missing >= 0:
            self._wait(self._met, "the next step or call", asleep=True, patience_seconds=patience_seconds)
            _, lowest, highest = count_votes(self._counters, self.rank, self._met, 1, word)
        return lowest, highest

    def reduction(
        self, rows: Rows, code: int, start: int, stop: int, targets: tuple[int, int], divisor: float
    ) -> Reduction:
        """Return the combination of elements `start:stop` of all rows. `code`: the operation, of `kernels.CODE`.

        `targets`: the first and the last + 1 of the rows that get the result, divided by `divisor`. Each rank combines
        its part of the elements.
        """
        part = part_of(self.rank, self.size, start, stop, rows.itemsize)
        work = rows.scratch if rows.row is None or targets[0] > 0 else rows.row
        array, in_place = rows.array, work is rows.row
        where = (address_of(array), *array.shape, address_of(work), work.size, in_place)
        what = (code, *part, *targets, rows.looks)
        plan = np.array([self._address, self.size, self.rank, *what, *where, 0], np.int64)
        plan[barrier.DIVISOR :].view(np.float64)[0] = divisor
        run = barrier.meet_and_combine(array.dtype)
        return Reduction(run, address_of(plan), (plan, array, work, self._counters))

    def combine_(self, reduction: Reduction) -> None:
        """Replace elements of rows by their combination. It may be repeated. Raises the errors of `meet`."""
        run, plan = reduction.run, reduction.plan
        met = self._met + 1
        self._met = met + 1
        missing = run(plan, met, 0)
        if not missing:
            return
        if missing == barrier.FIRST_MEETING:
            self._wait(met, "a collective")
            missing = run(plan, met, 0)
        if missing:
            self._wait(met + 1, "the end of a collective")

    def note_not_finite(self, row: int, element: int) -> None:
        """Note what this rank found in its part of a combination: a row with NaN or Inf (-1: none), and the element."""
        word = self.rank * LINE + NOT_FINITE_WORD
        self._counters[word : word + 2] = row + 1, element

    def first_not_finite(self, rows: tuple[int, int]) -> int | None:
        """Return the first element of rows `first:last` in which the last combination found NaN or Inf.

        Returns None if it found none, or did not look.
        """
        lines = self._counters.reshape(self.size, LINE)[:, NOT_FINITE_WORD : NOT_FINITE_WORD + 2].tolist()
        return min((element for row, element in lines if rows[0] < row <= rows[1]), default=None)

    def moved(self) -> None:
        """Report progress: the deadline of ranks that wait for this one begins anew."""
        self._counters[self.rank * LINE + 1] += 1

    def give_up(self) -> None:
        """Make the other ranks fail soon, because this rank will not complete its operation."""
        self._counters[self.rank * LINE] = GIVEN_UP
        self._wake()

    def leave(self) -> None:
        """Leave the node. Ranks that wait for this rank in an operation that it has not joined fail at once."""
        self._counters[self.rank * LINE + 1] = LEFT
        self._wake()

    def _wake(self) -> None:
        """Wake the ranks that sleep until this rank's counter changes."""
        wake(self._address + self.rank * ALIGNMENT)

    def _wait(
        self, met: int, what: str, asleep: bool = False, patience_seconds: float = 0.0, only: int | None = None
    ) -> None:
        """Return when the counters of all ranks, or only that of rank `only`, have reached `met`."""
        end, seen, tries = math.inf, -1, 1 if asleep else TRIES
        first, last = (0, self.size) if only is None else (only, only + 1)
        while (missing := wait_for(self._counters, self.rank, met, tries, first, last)) >= 0:
            self.awaited = self.names[missing]
            if asleep and 0 <= (count := int(self._counters[missing * LINE])) < met:
                wait_for_change(self._address + missing * ALIGNMENT, count, SLEEP_SECONDS)
            now = time.monotonic()
            if self._counters[missing * LINE] == GIVEN_UP:
                raise GroupError(f"rank {self.names[missing]} gave up {what} that rank {self.names[self.rank]} is in")
            # The rank may have met and left since its counter was read above, so it is read again.
            if self._counters[missing * LINE + 1] == LEFT and self._counters[missing * LINE] < met:
                raise rank_ended(self.names[missing], self.names[self.rank], what)
            if self._counters[missing * LINE + 1] != seen:
                seen, end = self._counters[missing * LINE + 1], now + self.deadline_seconds + patience_seconds
            if now > end:
                self.give_up()
                raise DeadlineError(
                    f"rank {self.names[missing]} did not reach {what} of rank {self.names[self.rank]}, on the same "
                    f"node, within {self.deadline_seconds:g} s"
                )
        self.awaited = None

    def _share(self, nbytes: int) -> np.ndarray:
        """Return `nbytes` zeroed bytes (uint8) that rank 0 makes and all ranks map. Raises LayoutError on all ranks."""
        if self.size == 1 or not nbytes:
            return shared_memory(nbytes) if self._alone else private_memory(nbytes)
        memory, name, error = private_memory(0), "", ""
        if self.rank == 0:
            try:
                memory = create_shared(nbytes)
                name = shared_name(memory)
            except OSError as problem:
                error = f"{nbytes} bytes of shared memory cannot be had: {problem.strerror}"
        name = self._hear(name)[0]
        if self.rank and name:
            try:
                memory = attach_shared(name, nbytes)
            except LayoutError as problem:
                error = str(problem)
        for other in self._hear(error):
            if other:
                raise LayoutError(other)
        return memory

    def _hear(self, text: str) -> list[str]:
        return [other.decode() for other in self.group.allgather_bytes(text.encode())]


@lru_cache(maxsize=4096)
def part_of(number: int, parts: int, start: int, stop: int, itemsize: int) -> tuple[int, int]:
    """Return part `number` of `parts` parts of elements `start:stop`, as equal as possible, cut between cache lines.

    The part is empty if `number` is beyond the last part. Results are cached, because for small ranges the computation
    would take as long as the operation.

    >>> part_of(1, 2, 0, 100, 4), part_of(2, 2, 0, 100, 4)
    ((48, 100), (100, 100))
    """
    step = ALIGNMENT // itemsize
    lines = -(-(stop - start) // step)
    first = start + lines * number // parts * step
    last = start + lines * min(number + 1, parts) // parts * step
    return min(first, stop), min(last, stop)
