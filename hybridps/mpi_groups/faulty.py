"""A group that fails on purpose, to test code that uses collectives."""

from __future__ import annotations

from typing import Any

import numpy as np

from hybridps.errors import GroupError
from hybridps.mpi_groups.group import Group, Transfer


class FaultyGroup:
    """Passes the first `operations` operations to `inner`; every later one raises GroupError."""

    def __init__(self, inner: Group, operations: int) -> None:
        self.inner = inner
        self.left = operations
        self.rank = inner.rank
        self.size = inner.size

    @property
    def bytes_moved(self) -> int:
        return self.inner.bytes_moved

    def allreduce_(self, *args: Any) -> None:
        self._next().allreduce_(*args)

    def broadcast_(self, *args: Any) -> None:
        self._next().broadcast_(*args)

    def allgather_bytes(self, data: bytes) -> list[bytes]:
        return self._next().allgather_bytes(data)

    def reduce_scatter(self, *args: Any) -> None:
        self._next().reduce_scatter(*args)

    def allgather(self, *args: Any) -> None:
        self._next().allgather(*args)

    def send(self, array: np.ndarray, to: int, tag: int) -> Transfer:
        return self._next().send(array, to, tag)

    def receive(self, array: np.ndarray, source: int, tag: int) -> Transfer:
        return self._next().receive(array, source, tag)

    def barrier(self) -> None:
        self._next().barrier()

    def farewell(self) -> None:
        self._next().farewell()

    def split(self, colour: int) -> FaultyGroup:
        return FaultyGroup(self._next().split(colour), self.left)

    def free(self) -> None:
        self.inner.free()

    def _next(self) -> Group:
        if self.left == 0:
            raise GroupError(f"rank {self.rank}: injected fault")
        self.left -= 1
        return self.inner
