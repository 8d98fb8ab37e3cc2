"""The transfers of a chunk between nodes, and the loop that runs several chunks at a time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Iterable, Sequence

import numpy as np

from hybridps.codecs import CODECS
from hybridps.memory import private_memory
from hybridps.mpi_groups.group import Group, Operation, Transfer
from hybridps.tensor_collectives import kernels

HELLO = (1 << 15) - 1
"""The tag of a sign of life after a deadline."""

TAGS = HELLO

SPIN_SECONDS = 50e-6
"""How long a nap does not sleep yet."""

Steps = Generator[tuple[Transfer, ...], None, None]
"""An operation on one chunk: it is resumed when the transfers that it yields are done."""


class Talk:
    """The conversation of the ranks of a lane about one chunk at a time, of at most `nbytes` before it is encoded.

    `rank` and `size` are those in the lane. Chunks are combined exactly; `codec` says how they travel. A lossy codec
    goes only with the operation 'sum'.
    """

    def __init__(self, lane: Group, nbytes: int) -> None:
        self.lane = lane
        self.rank = lane.rank
        self.size = lane.size
        self.tag = 0
        self.op: Operation = "sum"
        self.codec = CODECS["exact"]
        self.scratch = private_memory(nbytes)
        """Memory for a chunk, for operations that need some."""
        self._landing = private_memory(nbytes)
        self._encoded = private_memory(nbytes)
        self._backwards = False

    def reversed(self) -> Talk:
        """The same conversation and memory, with the ranks in reverse order."""
        other = object.__new__(Talk)
        other.__dict__.update(self.__dict__)
        other.rank = self.size - 1 - self.rank
        other._backwards = not self._backwards
        return other

    def swap(self, give: np.ndarray, to: int, take: np.ndarray, source: int, combine: bool) -> Steps:
        """Send `give` to rank `to`, and receive as many elements as `take` has from rank `source`.

        `combine`: whether what is received is combined with `take`, or replaces it. Nothing is sent or received for an
        array without elements.
        """
        transfers = []
        landing = self._landing_for(take, combine)
        if len(take):
            transfers.append(self.lane.receive(landing, self._peer(source), self.tag))
        if len(give):
            transfers.append(self.lane.send(self._on_the_wire(give), self._peer(to), self.tag))
        if transfers:
            yield tuple(transfers)
        if combine and self.codec.exact:
            kernels.accumulate_(take, landing, kernels.CODE[self.op])
        elif combine:
            self.codec.add(landing, take)
        elif not self.codec.exact:
            self.codec.decode(landing, take)

    def divided_(self, part: np.ndarray, divisor: int) -> int:
        """Divide `part` before a lossy codec, whose range a sum may exceed, encodes it. Returns the divisor left."""
        if self.codec.exact or divisor == 1:
            return divisor
        np.divide(part, divisor, out=part)
        return 1

    def round_(self, part: np.ndarray) -> None:
        """Replace complete values by what the other nodes decode, so that all nodes have the same bits."""
        if not self.codec.exact:
            self.codec.decode(self._on_the_wire(part), part)

    def _landing_for(self, take: np.ndarray, combine: bool) -> np.ndarray:
        """Memory in which a message arrives: `take` itself where it needs no work afterwards."""
        if not self.codec.exact:
            return self._landing[: self.codec.nbytes(len(take), take.dtype)]
        return self._landing.view(take.dtype)[: len(take)] if combine else take

    def _on_the_wire(self, part: np.ndarray) -> np.ndarray:
        if self.codec.exact:
            return part
        encoded = self._encoded[: self.codec.nbytes(len(part), part.dtype)]
        self.codec.encode(part, encoded)
        return encoded

    def _peer(self, rank: int) -> int:
        return self.size - 1 - rank if self._backwards else rank


def spin(waited_seconds: float) -> None:
    """Look again at once, after the other threads that want this core."""
    os.sched_yield()


def nap(waited_seconds: float) -> None:
    """Spin shortly, then sleep for a tenth of the time waited so far, at most a millisecond."""
    if waited_seconds < SPIN_SECONDS:
        os.sched_yield()
    else:
        time.sleep(min(waited_seconds / 10, 0.001))


def run(
    chunks: Iterable[tuple[int, int]],
    talks: Sequence[Talk],
    steps_of: Callable[[Talk, int, int], Steps],
    moved: Callable[[], None],
    deadline_seconds: float,
    pause: Callable[[float], None] = spin,
) -> bool:
    """Do `steps_of(talk, start, stop)` for each chunk, as many at a time as there are talks.

    While the transfers of one chunk are under way, other chunks proceed. The loop calls `moved` whenever one does, and
    otherwise `pause` with the seconds since then. Returns False when none has proceeded for `deadline_seconds`.
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
        elif (waited := time.monotonic() - last) > deadline_seconds:
            return False
        else:
            pause(waited)
    return True


def silent_ranks(lane: Group, patience_seconds: float) -> list[int]:
    """After a deadline: the ranks of the lane that send no sign of life within `patience_seconds`."""
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
