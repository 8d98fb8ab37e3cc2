"""Groups over MPI. Only the files of this room use mpi4py."""

from __future__ import annotations

import ctypes
import math
import os
import time
from typing import Any

import numpy as np
from mpi4py import MPI

from hybridps.errors import DeadlineError
from hybridps.mpi_groups.group import LOOK_SECONDS, Operation, Transfer, arrays_differ, describe
from hybridps.mpi_groups.ledger import Ledger

OPERATION = {"sum": MPI.SUM, "max": MPI.MAX, "min": MPI.MIN}


def _propagating_nan(combine: np.ufunc) -> MPI.Op:
    def operation(given: Any, kept: Any, datatype: MPI.Datatype) -> None:
        mine = np.frombuffer(kept, np.dtype(datatype.tocode()))
        combine(mine, np.frombuffer(given, mine.dtype), out=mine)

    return MPI.Op.Create(operation, commute=True)


PROPAGATES_NAN = {"max": _propagating_nan(np.maximum), "min": _propagating_nan(np.minimum)}
"""Operations for floats in which NaN takes precedence, as in NumPy."""

# For a large buffer the library would map new scratch memory in each call, which costs more than the reduction. Pieces
# of this size fit its scratch memory and the cache.
PIECE_BYTES = 2 << 20

SMALL_BYTES = 32 << 10
"""Up to this size the group polls an operation. Larger operations block, once all ranks have begun them."""

LOOKS = 500
"""How often a wait polls before it sleeps."""


class MPIGroup:
    """The Group of an MPI communicator, which it owns: `free` frees the communicator.

    Every wait for other ranks ends after `deadline_seconds`, and sleeps after a short spin. `ledger`: knows this
    conversation by `name`, and ends a wait for a rank that has left.
    """

    def __init__(
        self, communicator: MPI.Comm, deadline_seconds: float, ledger: Ledger | None = None, name: str = ""
    ) -> None:
        self.communicator = communicator
        self.deadline_seconds = deadline_seconds
        self.rank: int = communicator.Get_rank()
        self.size: int = communicator.Get_size()
        self.bytes_moved = 0
        self._ledger = ledger
        self._name = name
        self._splits = 0
        if ledger is not None:
            ledger.join(name)

    def allreduce_(self, array: np.ndarray, op: Operation = "sum") -> None:
        self._count(array)
        if self.size == 1:
            return
        operation = (PROPAGATES_NAN if array.dtype.kind == "f" and op != "sum" else OPERATION)[op]
        if array.nbytes <= SMALL_BYTES:
            self._wait(self.communicator.Iallreduce(MPI.IN_PLACE, array, operation), "an allreduce of all ranks")
            return
        self._wait_for_all("an allreduce", array)
        for piece in _pieces(array):
            self.communicator.Allreduce(MPI.IN_PLACE, piece, operation)

    def broadcast_(self, array: np.ndarray, root: int = 0) -> None:
        self._count(array)
        if self.size == 1:
            return
        if array.nbytes <= SMALL_BYTES:
            self._wait(self.communicator.Ibcast(array.view(np.uint8), root), "a broadcast to all ranks")
            return
        self._wait_for_all("a broadcast", array)
        for piece in _pieces(array):
            self.communicator.Bcast(piece.view(np.uint8), root)

    def allgather_bytes(self, data: bytes) -> list[bytes]:
        sizes = np.zeros(self.size, np.int64)
        self._wait(self.communicator.Iallgather(np.array([len(data)], np.int64), sizes), "agreement of all ranks")
        everything = np.zeros(int(sizes.sum()), np.uint8)
        parts = [everything, sizes.tolist()]
        self._wait(self.communicator.Iallgatherv(np.frombuffer(data, np.uint8), parts), "agreement of all ranks")
        ends = np.cumsum(sizes)
        return [everything[end - size : end].tobytes() for size, end in zip(sizes, ends, strict=True)]

    def send(self, array: np.ndarray, to: int, tag: int) -> Transfer:
        self._count(array)
        return self.communicator.Isend(array.view(np.uint8), to, tag).Test

    def receive(self, array: np.ndarray, source: int, tag: int) -> Transfer:
        return self.communicator.Irecv(array.view(np.uint8), source, tag).Test

    def barrier(self) -> None:
        self._wait(self.communicator.Ibarrier(), "a barrier of all ranks")

    def begin(self) -> None:
        if self._ledger is not None:
            self._ledger.begin(self._name)

    def check_left(self, what: str) -> None:
        if self._ledger is not None:
            self._ledger.check(self._name, what)

    def farewell(self) -> None:
        self.deadline_seconds = math.inf
        if self._ledger is None or self._name:  # without a name this is the world, to which the ledger belongs
            self.barrier()
            return
        ledger, self._ledger = self._ledger, None
        ledger.leave()
        self.barrier()
        ledger.close()

    def split(self, colour: int) -> MPIGroup:
        self._splits += 1
        name = f"{self._name}/{self._splits}.{colour}"
        return MPIGroup(self.communicator.Split(colour, self.rank), self.deadline_seconds, self._ledger, name)

    def free(self) -> None:
        if self.communicator != MPI.COMM_NULL:
            self.communicator.Free()

    def _wait_for_all(self, what: str, array: np.ndarray) -> None:
        """Return when all ranks have begun the operation. The library itself would wait forever for a missing rank.

        Raises LayoutError, on all ranks, if their arrays differ in size or dtype.
        """
        if self.size == 1:
            return
        form = array.nbytes << 8 | array.dtype.num
        extremes = np.array([form, -form], np.int64)
        self._wait(self.communicator.Iallreduce(MPI.IN_PLACE, extremes, MPI.MAX), f"{what} of all ranks")
        if extremes[0] != -extremes[1]:
            forms = self.allgather_bytes(describe(array).encode())
            raise arrays_differ(what, [form.decode() for form in forms])

    def _wait(self, request: MPI.Request, what: str) -> None:
        self.begin()
        for _ in range(LOOKS):
            if request.Test():
                return
            os.sched_yield()
        began = looked = time.monotonic()
        pause = 1e-5
        while not request.Test():
            now = time.monotonic()
            if now - began > self.deadline_seconds:
                raise DeadlineError(f"rank {self.rank} waited {self.deadline_seconds:g} s for {what}")
            if now - looked > LOOK_SECONDS:
                looked = now
                self.check_left(what)
            time.sleep(pause)
            pause = min(2 * pause, 0.01)

    def _count(self, array: np.ndarray) -> None:
        if self.size > 1:
            self.bytes_moved += array.nbytes


def _pieces(array: np.ndarray) -> list[np.ndarray]:
    step = max(1, PIECE_BYTES // array.itemsize)
    return [array[start : start + step] for start in range(0, len(array), step)]


def why_no_device_memory() -> str:
    """Return why the MPI library cannot send from GPU memory; empty if it can, as CUDA-aware MPI libraries do."""
    # Open MPI and MPICH have this function. mpi4py does not expose it, but links to the library.
    query = getattr(ctypes.CDLL(MPI.__file__), "MPIX_Query_cuda_support", None)
    if query is None:
        return "the MPI library does not say whether it is CUDA-aware"
    return "" if query() else "the MPI library is not CUDA-aware"
