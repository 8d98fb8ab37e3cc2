"""The ranks of a node: they reduce straight out of each other's memory."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from functools import lru_cache

import msgspec
import numpy as np

from hybridps.errors import DeadlineError, GroupError, LayoutError
from hybridps.memory import ALIGNMENT, SharedMemory, private_memory, shared_memory
from hybridps.mpi_groups.group import Group
from hybridps.tensor_collectives import kernels
from hybridps.tensor_collectives.asleep import wait_for_change, wake
from hybridps.tensor_collectives.barrier import wait_for
from hybridps.tensor_collectives.tensor import Rows

GIVEN_UP = -1

LINE = ALIGNMENT // 8
"""int64 words in a cache line: each rank's counter has one of its own."""

SLEEP_SECONDS = 0.05
"""Between two looks at the clock, asleep."""

TRIES = 20_000
"""Looks at the counters between two looks at the clock."""


class _Offer(msgspec.Struct, forbid_unknown_fields=True):
    """What a rank tells the others of memory that it made, or that it could not use."""

    name: str = ""
    error: str = ""


class Node:
    """Shared memory and a barrier for the ranks of `group`, which all run on one host.

    `names`: what the ranks are called in messages, their numbers in a larger group. Raises LayoutError, on all ranks,
    where they cannot share memory.
    """

    def __init__(self, group: Group, names: Sequence[int], deadline_seconds: float, alone: bool = False) -> None:
        self.group = group
        self._alone = alone
        self.names = names
        self.rank = group.rank
        self.size = group.size
        self.deadline_seconds = deadline_seconds
        self._counters = self._share(self.size * ALIGNMENT).view(np.int64)
        """Of each rank, a cache line apart: how often it has met the others, or `GIVEN_UP`; and how far it is."""
        self._address = self._counters.ctypes.data
        self._met = 0

    def rows(self, length: int, dtype: np.dtype, vectors: Sequence[int]) -> np.ndarray:
        """Zeros of shape (sum of vectors, at least length): each rank's rows in the memory of all. All ranks call it.

        `vectors`: of each rank of the node. Rows begin at multiples of `ALIGNMENT`. Raises LayoutError as the class.
        """
        step = ALIGNMENT // dtype.itemsize
        padded = -(-length // step) * step
        everything = self._share(sum(vectors) * padded * dtype.itemsize).view(dtype)
        rows = everything.reshape(sum(vectors), padded)
        first = sum(vectors[: self.rank])
        rows[first : first + vectors[self.rank]] = 0  # the pages then lie near the rank that uses them
        self.meet("the first use of shared memory")
        return rows

    def meet(self, what: str = "a collective", asleep: bool = False, patience_seconds: float = 0.0) -> None:
        """Return when all ranks of the node have called it, or arrived.

        Raises DeadlineError that names a missing rank, or GroupError if one has given up. `asleep`: what is waited for
        takes long, and needs the cores. `patience_seconds`: beyond the deadline, for who knows more to say so first.
        """
        if asleep:
            self.arrive()
        else:
            self._met += 1
        self._wait(self._met, what, asleep, patience_seconds)

    def arrive(self) -> None:
        """Be counted as one who has met, and wake those ranks that wait for this one; return at once."""
        self._met += 1
        wait_for(self._counters, LINE, self.rank, self._met, 0, 0, 0)
        self._wake()

    def wait_for_rank(self, rank: int, what: str) -> None:
        """As `meet`, asleep, but return when that rank alone has met or arrived."""
        self.arrive()
        self._wait(self._met, what, asleep=True, ranks=(rank, rank + 1))

    def combine_(self, rows: Rows, op: str, divisor: int, start: int, stop: int, of_rank: int | None = None) -> None:
        """Elements `start:stop` of all rows, or of one rank's, become `op` over all rows, over `divisor`.

        Each rank does its part.
        """
        array = rows.array
        targets = (0, len(array)) if of_rank is None else rows.of_rank(of_rank)
        work = (
            array,
            kernels.CODE[op],
            divisor,
            *self.part(start, stop, rows.itemsize, self.size),
            *targets,
            rows.scratch,
        )
        came = self._met + 1
        self._met += 2
        outcome = kernels.meet_and_combine_(self._counters, LINE, self.rank, came, TRIES, *work)
        if outcome == kernels.NOT_ALL_CAME:
            self._wait(came, "a collective")
            kernels.combine_(*work)
        if outcome != kernels.DONE:
            self._wait(came + 1, "the end of a collective")

    def part(self, start: int, stop: int, itemsize: int, parts: int) -> tuple[int, int]:
        """This rank's of `parts` parts of elements `start:stop`; ranks beyond the last part have an empty one."""
        return part_of(min(self.rank, parts), parts, start, stop, itemsize)

    def moved(self) -> None:
        """This rank has got on with what the others wait for: their deadline begins anew."""
        self._counters[self.rank * LINE + 1] += 1

    def give_up(self) -> None:
        """Let the others fail soon: what this rank has left undone is never done."""
        self._counters[self.rank * LINE] = GIVEN_UP
        self._wake()

    def _wake(self) -> None:
        """Let those look again who wait for this rank asleep."""
        wake(self._address + self.rank * ALIGNMENT)

    def _wait(
        self,
        met: int,
        what: str,
        asleep: bool = False,
        patience_seconds: float = 0.0,
        ranks: tuple[int, int] | None = None,
    ) -> None:
        """Return when these ranks, else all, have met so often."""
        end, seen = math.inf, -1
        tries, (first, last) = 1 if asleep else TRIES, ranks or (0, self.size)
        while (missing := wait_for(self._counters, LINE, self.rank, met, tries, first, last)) >= 0:
            if asleep and 0 <= (count := int(self._counters[missing * LINE])) < met:
                wait_for_change(self._address + missing * ALIGNMENT, count, SLEEP_SECONDS)
            now = time.monotonic()
            if self._counters[missing * LINE] == GIVEN_UP:
                raise GroupError(
                    f"rank {self.names[missing]} has given up {what} that rank {self.names[self.rank]} is in"
                )
            if self._counters[missing * LINE + 1] != seen:
                seen, end = self._counters[missing * LINE + 1], now + self.deadline_seconds + patience_seconds
            if now > end:
                self.give_up()
                raise DeadlineError(
                    f"rank {self.names[missing]} did not come to {what} of rank {self.names[self.rank]}, on the same "
                    f"node, within {self.deadline_seconds:g} s"
                )

    def _share(self, nbytes: int) -> np.ndarray:
        """`nbytes` zeroed bytes that rank 0 makes and all use (uint8). Raises LayoutError on all ranks or on none."""
        if self.size == 1:
            return shared_memory(nbytes) if self._alone else private_memory(nbytes)
        segment, offer, answer = None, _Offer(), _Offer()
        if self.rank == 0:
            try:
                segment = SharedMemory.create(nbytes)
                offer.name = segment.name
            except OSError as error:
                offer.error = f"{nbytes} bytes of shared memory cannot be had: {error.strerror}"
        first = self._hear(offer)[0]
        if segment is None and not first.error:
            try:
                segment = SharedMemory.attach(first.name, nbytes)
            except LayoutError as error:
                answer.error = str(error)
        answer.error = answer.error or first.error
        heard = self._hear(answer)
        if segment is not None:
            segment.close()  # all have attached: the memory lives as long as somebody uses it
        for other in heard:
            if other.error:
                raise LayoutError(other.error)
        if segment is None:
            raise LayoutError(first.error)
        return segment.bytes

    def _hear(self, offer: _Offer) -> list[_Offer]:
        told = self.group.allgather_bytes(msgspec.json.encode(offer))
        return [msgspec.json.decode(other, type=_Offer) for other in told]


@lru_cache(maxsize=4096)
def part_of(number: int, parts: int, start: int, stop: int, itemsize: int) -> tuple[int, int]:
    """Part `number` of elements `start:stop`, of `parts` as equal as possible, cut between cache lines.

    Kept for the ranges in use: for few bytes it takes as long as what is done with them.

    >>> part_of(1, 2, 0, 100, 4), part_of(2, 2, 0, 100, 4)
    ((48, 100), (100, 100))
    """
    step = ALIGNMENT // itemsize
    lines = -(-(stop - start) // step)
    first = start + lines * number // parts * step
    last = start + lines * min(number + 1, parts) // parts * step
    return min(first, stop), min(last, stop)
