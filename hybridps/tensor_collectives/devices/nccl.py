"""Collectives of GPUs over NCCL, with one rank for each GPU."""

from __future__ import annotations

import time

import cupy
import numpy as np
from cupy.cuda import nccl

from hybridps.errors import DeadlineError, GroupError
from hybridps.mpi_groups.group import Group, Operation, allgather

OPERATION = {"sum": nccl.NCCL_SUM, "max": nccl.NCCL_MAX, "min": nccl.NCCL_MIN} if nccl.available else {}

_TYPE_NAMES = {"float32": "NCCL_FLOAT32", "float64": "NCCL_FLOAT64", "int32": "NCCL_INT32", "int64": "NCCL_INT64"}


def missing() -> str:
    """Return why this process cannot use NCCL; empty if it can."""
    return "" if nccl.available else "the NCCL library is not installed: pip install nvidia-nccl-cu12"


class NcclGroup:
    """`allreduce_` and `broadcast_` of a Group on CuPy arrays of GPU `number`, which no other rank may use.

    All ranks of `group` make it. Operations raise DeadlineError if a rank does not join in time, and GroupError if NCCL
    reports an error; the NcclGroup cannot be used after that.
    """

    def __init__(self, group: Group, number: int, deadline_seconds: float) -> None:
        self.rank = group.rank
        self.size = group.size
        self.deadline_seconds = deadline_seconds
        own = list(nccl.get_unique_id()) if group.rank == 0 else []
        identity = allgather(group, own, list[int])[0]
        # CuPy takes the identity as bytes from version 14 on, and as a tuple before.
        kind = bytes if int(cupy.__version__.partition(".")[0]) >= 14 else tuple
        with cupy.cuda.Device(number):
            self._stream = cupy.cuda.Stream(non_blocking=True)
            self._communicator = nccl.NcclCommunicator(group.size, kind(identity), group.rank)

    def allreduce_(self, array: cupy.ndarray, op: Operation = "sum") -> None:
        self._run("allReduce", array, OPERATION[op])

    def broadcast_(self, array: cupy.ndarray, root: int = 0) -> None:
        self._run("broadcast", array, root)

    def free(self) -> None:
        self._communicator.destroy()

    def _run(self, name: str, array: cupy.ndarray, last: int) -> None:
        """Begin an operation in place and wait for it. NCCL itself would wait forever for a rank that is gone."""
        kind = int(getattr(nccl, _TYPE_NAMES[np.dtype(array.dtype).name]))
        with array.device:
            address = array.data.ptr
            getattr(self._communicator, name)(address, address, array.size, kind, last, self._stream.ptr)
            event = self._stream.record(cupy.cuda.Event(disable_timing=True))
        end = time.monotonic() + self.deadline_seconds
        pause = 1e-5
        while not event.done:
            try:
                self._communicator.check_async_error()
            except nccl.NcclError as error:
                self._communicator.abort()
                raise GroupError(f"rank {self.rank}: NCCL ended a collective: {error}") from None
            if time.monotonic() > end:
                self._communicator.abort()
                raise DeadlineError(f"rank {self.rank} waited {self.deadline_seconds:g} s for the other GPUs in NCCL")
            time.sleep(pause)
            pause = min(2 * pause, 1e-3)
