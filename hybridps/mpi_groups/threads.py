"""Ranks as threads of one process, to test algorithms without MPI and to debug a job in one process."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from functools import reduce
from typing import Any, TypeVar

import numpy as np

from hybridps.errors import GroupError
from hybridps.mpi_groups.group import Operation, arrays_differ, describe

Result = TypeVar("Result")

UFUNC: dict[str, np.ufunc] = {"sum": np.add, "max": np.maximum, "min": np.minimum}


class _Room:
    """What the threads of one group share: a slot for each rank, a barrier, and mail."""

    def __init__(self, size: int, deadline_seconds: float) -> None:
        self.slots: list[Any] = [None] * size
        self.barrier = threading.Barrier(size, timeout=deadline_seconds)
        self.rooms: dict[int, _Room] = {}
        self._mail: dict[tuple[int, int, int], queue.SimpleQueue[np.ndarray]] = {}
        self.deadline_seconds = deadline_seconds

    def mail(self, sender: int, receiver: int, tag: int) -> queue.SimpleQueue[np.ndarray]:
        """The same queue for both threads, whichever asks first: `setdefault` is one step, unlike a defaultdict's."""
        return self._mail.setdefault((sender, receiver, tag), queue.SimpleQueue())


class _Sent:
    """A sent message, which is in the receiver's mail."""

    def __init__(self, peer: int) -> None:
        self.peer = peer

    def done(self) -> bool:
        return True


class _Awaited:
    """A message to receive."""

    def __init__(self, array: np.ndarray, peer: int, mail: queue.SimpleQueue[np.ndarray]) -> None:
        self.peer = peer
        self._array = array
        self._mail = mail
        self._came = False

    def done(self) -> bool:
        if not self._came:
            try:
                self._array[...] = self._mail.get_nowait()
                self._came = True
            except queue.Empty:
                pass
        return self._came


class ThreadGroup:
    """The Group of one thread. `run` calls a function on several threads."""

    def __init__(self, room: _Room, rank: int) -> None:
        self._room = room
        self.rank = rank
        self.size = len(room.slots)
        self.bytes_moved = 0

    @staticmethod
    def run(size: int, work: Callable[[ThreadGroup], Result], deadline_seconds: float = 60.0) -> list[Result]:
        """Call `work(group)` on `size` threads, and return the results in rank order.

        The first exception of a rank is raised here; the other ranks end with GroupError.
        """
        room = _Room(size, deadline_seconds)
        results: list[Any] = [None] * size
        errors: list[BaseException] = []

        def body(rank: int) -> None:
            try:
                results[rank] = work(ThreadGroup(room, rank))
            except BaseException as error:
                errors.append(error)
                _abort(room)

        threads = [threading.Thread(target=body, args=(rank,), daemon=True) for rank in range(size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return results

    def allreduce_(self, array: np.ndarray, op: Operation = "sum") -> None:
        self._count(array)
        self._meet_with("an allreduce", array)
        # Every rank combines in rank order, so that all get the same bits.
        total = reduce(UFUNC[op], self._room.slots[1:], self._room.slots[0].copy())
        self._wait()
        array[...] = total

    def broadcast_(self, array: np.ndarray, root: int = 0) -> None:
        self._count(array)
        self._meet_with("a broadcast", array)
        if self.rank != root:
            array[...] = self._room.slots[root]
        self._wait()

    def allgather_bytes(self, data: bytes) -> list[bytes]:
        self._meet(data)
        everyone = list(self._room.slots)
        self._wait()
        return everyone

    def reduce_scatter(self, array: np.ndarray, out: np.ndarray, counts: list[int]) -> None:
        self._count(array)
        self._meet_with("a reduce-scatter", array)
        start = sum(counts[: self.rank])
        parts = [other[start : start + counts[self.rank]] for other in self._room.slots]
        total = reduce(np.add, parts[1:], parts[0].copy())
        self._wait()
        out[...] = total

    def allgather(self, array: np.ndarray, out: np.ndarray, counts: list[int]) -> None:
        self._count(array)
        self._meet(array.copy())
        gathered = list(self._room.slots)
        self._wait()
        np.concatenate(gathered, out=out)

    def send(self, array: np.ndarray, to: int, tag: int) -> _Sent:
        self._count(array)
        self._room.mail(self.rank, to, tag).put(array.copy())
        return _Sent(to)

    def receive(self, array: np.ndarray, source: int, tag: int) -> _Awaited:
        return _Awaited(array, source, self._room.mail(source, self.rank, tag))

    def barrier(self) -> None:
        self._wait()

    def farewell(self) -> None:
        self._wait()

    def split(self, colour: int) -> ThreadGroup:
        self._meet(colour)
        colours = list(self._room.slots)
        members = [rank for rank, other in enumerate(colours) if other == colour]
        if members[0] == self.rank:
            self._room.rooms[colour] = _Room(len(members), self._room.deadline_seconds)
        self._wait()
        group = ThreadGroup(self._room.rooms[colour], members.index(self.rank))
        self._wait()
        return group

    def free(self) -> None:
        pass

    def _meet(self, thing: Any) -> None:
        self._room.slots[self.rank] = thing
        self._wait()

    def _meet_with(self, what: str, array: np.ndarray) -> None:
        """Meet, each with an array. Raises LayoutError, on all ranks, if the arrays differ in size or dtype."""
        self._meet(array)
        if any(other.shape != array.shape or other.dtype != array.dtype for other in self._room.slots):
            forms = [describe(other) for other in self._room.slots]
            self._wait()
            raise arrays_differ(what, forms)

    def _wait(self) -> None:
        try:
            self._room.barrier.wait()
        except threading.BrokenBarrierError:
            raise GroupError(f"rank {self.rank} waited in vain: another rank of the group failed or is late") from None

    def _count(self, array: np.ndarray) -> None:
        if self.size > 1:
            self.bytes_moved += array.nbytes


def _abort(room: _Room) -> None:
    room.barrier.abort()
    for inner in room.rooms.values():
        _abort(inner)
