"""Ranks as threads of one process, to test algorithms without MPI and to debug a job in one process."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from functools import reduce
from typing import Any, TypeVar

import numpy as np

from hybridps.errors import GroupError
from hybridps.mpi_groups.group import UFUNC, Operation, Transfer, arrays_differ, describe

Result = TypeVar("Result")


class _Room:
    """What the threads of one group share: a slot for each rank, a barrier, and mail.

    A rank writes only its own slot, before a barrier; the others read it after that barrier.
    """

    def __init__(self, size: int, deadline_seconds: float) -> None:
        self.slots: list[Any] = [None] * size
        self.barrier = threading.Barrier(size, timeout=deadline_seconds)
        self.rooms: dict[int, _Room] = {}
        self._mail: dict[tuple[int, int, int], queue.SimpleQueue[np.ndarray]] = {}
        self.deadline_seconds = deadline_seconds

    def mail(self, sender: int, receiver: int, tag: int) -> queue.SimpleQueue[np.ndarray]:
        """Return the same queue to both threads, whichever asks first. `setdefault` is atomic, unlike a defaultdict."""
        return self._mail.setdefault((sender, receiver, tag), queue.SimpleQueue())


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
        if self.size == 1:
            return
        self._count(array)
        self._meet_with("an allreduce", array)
        # Every rank combines in rank order, so that all get the same bits.
        total = reduce(UFUNC[op], self._room.slots[1:], self._room.slots[0].copy())
        self.barrier()
        array[...] = total

    def broadcast_(self, array: np.ndarray, root: int = 0) -> None:
        if self.size == 1:
            return
        self._count(array)
        self._meet_with("a broadcast", array)
        if self.rank != root:
            array[...] = self._room.slots[root]
        self.barrier()

    def allgather_bytes(self, data: bytes) -> list[bytes]:
        self._meet(data)
        everyone = list(self._room.slots)
        self.barrier()
        return everyone

    def send(self, array: np.ndarray, to: int, tag: int) -> Transfer:
        self._count(array)
        self._room.mail(self.rank, to, tag).put(array.copy())
        return lambda: True

    def receive(self, array: np.ndarray, source: int, tag: int) -> Transfer:
        mail, came = self._room.mail(source, self.rank, tag), False

        def done() -> bool:
            nonlocal came
            if not came and not mail.empty():
                array[...] = mail.get()
                came = True
            return came

        return done

    def barrier(self) -> None:
        try:
            self._room.barrier.wait()
        except threading.BrokenBarrierError:
            raise GroupError(f"rank {self.rank} waited in vain: another rank of the group failed or is late") from None

    def begin(self) -> None:
        pass

    def check_left(self, what: str) -> None:
        pass

    def farewell(self) -> None:
        self.barrier()

    def split(self, colour: int) -> ThreadGroup:
        colours = self.allgather_bytes(b"%d" % colour)
        members = [rank for rank, other in enumerate(colours) if int(other) == colour]
        if members[0] == self.rank:
            self._room.rooms[colour] = _Room(len(members), self._room.deadline_seconds)
        self.barrier()
        group = ThreadGroup(self._room.rooms[colour], members.index(self.rank))
        self.barrier()
        return group

    def free(self) -> None:
        pass

    def _meet(self, thing: Any) -> None:
        self._room.slots[self.rank] = thing
        self.barrier()

    def _meet_with(self, what: str, array: np.ndarray) -> None:
        """Meet the other ranks, each with an array.

        Raises LayoutError, on all ranks, if the arrays differ in size or dtype.
        """
        self._meet(array)
        if any(other.shape != array.shape or other.dtype != array.dtype for other in self._room.slots):
            forms = [describe(other) for other in self._room.slots]
            self.barrier()
            raise arrays_differ(what, forms)

    def _count(self, array: np.ndarray) -> None:
        if self.size > 1:
            self.bytes_moved += array.nbytes


class SoloGroup(ThreadGroup):
    """The Group of a single process, without MPI."""

    def __init__(self) -> None:
        super().__init__(_Room(1, 0.0), 0)


def _abort(room: _Room) -> None:
    room.barrier.abort()
    for inner in room.rooms.values():
        _abort(inner)
