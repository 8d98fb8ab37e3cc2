"""How the nodes exchange chunks: one conversation for each chunk, several of them at a time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Iterable, Sequence

import numpy as np

from hybridps.memory import private_memory
from hybridps.mpi_groups.group import Group, Operation, Transfer
from hybridps.tensor_collectives import kernels

HELLO = (1 << 15) - 1
"""The tag of a last sign of life."""

TAGS = HELLO

Steps = Generator[tuple[Transfer, ...], None, None]
"""An operation on one chunk: it goes on when the transfers that it yields are done."""


class Talk:
    """The conversation of the ranks of a lane about one chunk at a time, of at most `nbytes` in exact dtype.

    A lane joins ranks of different nodes; `rank` and `size` are those in it. What is combined is exact; on the wire
    it may be float16.
    """

    def __init__(self, lane: Group, nbytes: int) -> None:
        self.lane = lane
        self.rank = lane.rank
        self.size = lane.size
        self.tag = 0
        self.op: Operation = "sum"
        self.half = False
        """Whether chunks are float16 on the wire."""
        self.scratch = private_memory(nbytes)
        """Memory for a chunk, for who needs it."""
        self._landing = private_memory(nbytes)
        self._packed = private_memory(nbytes // 2)
        self._backwards = False

    def reversed(self) -> Talk:
        """The same with the ranks in reverse order, and the same memory."""
        other = object.__new__(Talk)
        other.__dict__.update(self.__dict__)
        other.rank = self.size - 1 - self.rank
        other._backwards = not self._backwards
        return other

    def swap(self, give: np.ndarray, to: int, take: np.ndarray, source: int, combine: bool) -> Steps:
        """Send `give`, and receive as much as `take`, to be combined with it or to replace it."""
        transfers = []
        direct = not combine and not self.half
        landing = take if direct else self._landing.view(np.uint16 if self.half else take.dtype)[: len(take)]
        if len(take):
            transfers.append(self.lane.receive(landing, self._peer(source), self.tag))
        if len(give):
            transfers.append(self.lane.send(self._packed_of(give), self._peer(to), self.tag))
        if transfers:
            yield tuple(transfers)
        if combine:
            kernels.accumulate_(take, landing, kernels.CODE[self.op])
        elif not direct:
            kernels.decode(landing, take)

    def shared_out_(self, part: np.ndarray, divisor: int) -> int:
        """What is left to divide by in the end. For a half wire each node divides first, as a sum may be too large."""
        if not self.half or divisor == 1:
            return divisor
        np.divide(part, divisor, out=part)
        return 1

    def round_(self, part: np.ndarray) -> None:
        """Round what is complete to what the other nodes will receive, so that all have the same bits."""
        if self.half:
            kernels.decode(self._packed_of(part), part)

    def _packed_of(self, part: np.ndarray) -> np.ndarray:
        if not self.half:
            return part
        packed = self._packed.view(np.uint16)[: len(part)]
        kernels.encode(part, packed)
        return packed

    def _peer(self, rank: int) -> int:
        return self.size - 1 - rank if self._backwards else rank


def run(
    chunks: Iterable[tuple[int, int]],
    talks: Sequence[Talk],
    steps_of: Callable[[Talk, int, int], Steps],
    moved: Callable[[], None],
    deadline_seconds: float,
) -> bool:
    """Do `steps_of(talk, start, stop)` for each chunk, as many at a time as there are talks.

    While the transfers of one chunk are under way, others go on. Calls `moved` whenever one gets on; returns False when
    nothing has moved for `deadline_seconds`.
    """
    idle, coming = list(talks), enumerate(chunks)
    active: list[tuple[Talk, Steps, tuple[Transfer, ...]]] = []
    last = time.monotonic()
    exhausted = False
    while active or not exhausted:
        going: list[tuple[Talk, Steps, tuple[Transfer, ...]]] = []
        progress = False
        for talk, steps, transfers in active:
            if all(transfer.done() for transfer in transfers):
                progress = True
                following = next(steps, None)
                if following is None:
                    idle.append(talk)
                else:
                    going.append((talk, steps, following))
            else:
                going.append((talk, steps, transfers))
        active = going
        if idle and not exhausted:
            number, chunk = next(coming, (0, None))
            if chunk is None:
                exhausted = True
                continue
            talk = idle.pop()
            talk.tag = number % TAGS
            steps = steps_of(talk, *chunk)
            active.append((talk, steps, ()))
            progress = True
        if progress:
            last = time.monotonic()
            moved()
        elif time.monotonic() - last > deadline_seconds:
            return False
        else:
            os.sched_yield()
    return True


def silent_ranks(lane: Group, patience_seconds: float) -> list[int]:
    """After a deadline: the ranks of the lane that do not say in this time that they are waiting too."""
    others = [rank for rank in range(lane.size) if rank != lane.rank]
    told, heard = np.zeros(1, np.uint8), np.zeros(lane.size, np.uint8)
    listening = {rank: lane.receive(heard[rank : rank + 1], rank, HELLO) for rank in others}
    said = [lane.send(told, rank, HELLO) for rank in others]
    end = time.monotonic() + patience_seconds
    while listening and time.monotonic() < end:
        listening = {rank: transfer for rank, transfer in listening.items() if not transfer.done()}
        _ = [transfer.done() for transfer in said]
        time.sleep(0.001)
    return list(listening)
