"""A group of one rank: nothing is communicated, and MPI is not needed."""

from __future__ import annotations

import numpy as np

from hybridps.mpi_groups.group import Operation


class SoloGroup:
    """The Group of a process that is alone."""

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

    def barrier(self) -> None:
        pass

    def farewell(self) -> None:
        pass

    def split(self, colour: int) -> SoloGroup:
        return SoloGroup()

    def free(self) -> None:
        pass
