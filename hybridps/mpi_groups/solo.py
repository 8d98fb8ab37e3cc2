"""A group of one rank, which communicates nothing and does not need MPI."""

from __future__ import annotations

import numpy as np

from hybridps.errors import GroupError
from hybridps.mpi_groups.group import Operation, Transfer


class SoloGroup:
    """The Group of a single process."""

    rank = 0
    size = 1
    bytes_moved = 0

    def allreduce_(self, array: np.ndarray, op: Operation = "sum") -> None:
        pass

    def broadcast_(self, array: np.ndarray, root: int = 0) -> None:
        pass

    def allgather_bytes(self, data: bytes) -> list[bytes]:
        return [data]

    def reduce_scatter(self, array: np.ndarray, out: np.ndarray, counts: list[int]) -> None:
        out[...] = array

    def allgather(self, array: np.ndarray, out: np.ndarray, counts: list[int]) -> None:
        out[...] = array

    def send(self, array: np.ndarray, to: int, tag: int) -> Transfer:
        raise GroupError("a group of one rank has nobody to send to")

    def receive(self, array: np.ndarray, source: int, tag: int) -> Transfer:
        raise GroupError("a group of one rank has nobody to receive from")

    def barrier(self) -> None:
        pass

    def farewell(self) -> None:
        pass

    def split(self, colour: int) -> SoloGroup:
        return SoloGroup()

    def free(self) -> None:
        pass
