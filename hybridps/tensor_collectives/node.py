"""The ranks of a node: they reduce straight out of each other's memory."""

from __future__ import annotations

import time

import msgspec
import numpy as np

from hybridps.errors import DeadlineError, LayoutError
from hybridps.memory import ALIGNMENT, SharedMemory
from hybridps.mpi_groups.group import Group
from hybridps.tensor_collectives.barrier import wait_for_all
from hybridps.tensor_collectives.tensor import OPERATIONS

LINE = ALIGNMENT // 8
"""int64 words in a cache line: each rank's counter has one of its own."""

BLOCK = 32 << 10
"""Elements combined at a time: a block of each row fits into the second cache with the others."""

TRIES = 20_000
"""Looks at the counters between two looks at the clock."""


class _Offer(msgspec.Struct, forbid_unknown_fields=True):
    """What a rank tells the others of memory that it made, or that it could not use."""

    name: str = ""
    error: str = ""


class Node:
    """Shared memory and a barrier for the ranks of `group`, which all run on one host.

    Raises LayoutError, on all ranks, where they cannot share memory.
    """

    def __init__(self, group: Group, deadline_seconds: float) -> None:
        self.group = group
        self.rank = group.rank
        self.size = group.size
        self.deadline_seconds = deadline_seconds
        self._counters = self._share(self.size * ALIGNMENT).view(np.int64)
        self._met = 0

    def rows(self, length: int, dtype: np.dtype, vectors: int) -> np.ndarray:
        """Zeros of shape (size * vectors, length): each rank's rows in the memory of all. All ranks call it.

        Rank r's rows are `r * vectors` to `(r + 1) * vectors`. Rows begin at multiples of `ALIGNMENT`.
        """
        step = ALIGNMENT // dtype.itemsize
        padded = -(-length // step) * step
        everything = self._share(self.size * vectors * padded * dtype.itemsize).view(dtype)
        rows = everything.reshape(self.size * vectors, padded)
        rows[self.rank * vectors : (self.rank + 1) * vectors] = 0  # the pages then lie near the rank that uses them
        self.meet("the first use of shared memory")
        return rows[:, :length]

    def meet(self, what: str = "a reduction") -> None:
        """Return when all ranks of the node have called it. Raises DeadlineError that names a missing rank."""
        self._met += 1
        if wait_for_all(self._counters, LINE, self.rank, self._met, TRIES) < 0:
            return
        end = time.monotonic() + self.deadline_seconds
        while (missing := wait_for_all(self._counters, LINE, self.rank, self._met, TRIES)) >= 0:
            if time.monotonic() > end:
                raise DeadlineError(
                    f"rank {missing} of the node did not come to {what} of rank {self.rank} "
                    f"within {self.deadline_seconds:g} s"
                )

    def combine_(self, rows: np.ndarray, op: str, divisor: int, start: int, stop: int) -> None:
        """Elements `start:stop` of all rows become `op` over all rows, over `divisor`. Each rank does its part."""
        self.meet()
        first, last = self.part(start, stop, rows.itemsize, self.size)
        combine_rows_(rows, op, divisor, first, last, len(rows))
        self.meet()

    def fold_(self, rows: np.ndarray, op: str, start: int, stop: int) -> None:
        """Elements `start:stop` of row 0 become `op` over all rows. This rank alone, between two meetings."""
        combine_rows_(rows, op, 1, start, stop, 1)

    def part(self, start: int, stop: int, itemsize: int, parts: int) -> tuple[int, int]:
        """This rank's of `parts` parts of elements `start:stop`: as equal as possible, cut between cache lines."""
        step = ALIGNMENT // itemsize
        lines = -(-(stop - start) // step)
        first = start + lines * self.rank // parts * step
        last = start + lines * (self.rank + 1) // parts * step
        return min(first, stop), min(last, stop)

    def _share(self, nbytes: int) -> np.ndarray:
        """`nbytes` zeroed bytes that rank 0 makes and all use (uint8). Raises LayoutError on all ranks or on none."""
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


def combine_rows_(rows: np.ndarray, op: str, divisor: int, start: int, stop: int, targets: int) -> None:
    """Elements `start:stop` of the first `targets` rows become `op` over all rows, in order, over `divisor`.

    Block by block, so that what is read from memory once is still in cache when it is written. float16 is
    combined in float32, and rounded once.
    """
    combine = OPERATIONS[op]
    exact = np.empty(min(BLOCK, stop - start), np.float32) if rows.dtype == np.float16 and start < stop else None
    for begin in range(start, stop, BLOCK):
        block = rows[:, begin : min(begin + BLOCK, stop)]
        total = block[0]
        if exact is not None:
            total = exact[: block.shape[1]]
            np.copyto(total, block[0])
        for row in block[1:]:
            combine(total, row, out=total)
        if divisor > 1:
            np.divide(total, divisor, out=total)
        for row in block[exact is None : targets]:
            np.copyto(row, total, casting="same_kind")
