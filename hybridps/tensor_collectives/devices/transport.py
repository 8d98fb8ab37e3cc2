"""The ways to combine packed vectors with those of other ranks: through host memory, or directly.

Both have `buffers`, one of the tensor's length for each packing device; `part`, this rank's part (`part_sizes`), which
`allgather_` reads; and collectives that work on these in place, in pieces of `piece_bytes`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from hybridps.mpi_groups.group import Operation
from hybridps.tensor_collectives.allgather import allgather_
from hybridps.tensor_collectives.allreduce import allreduce_
from hybridps.tensor_collectives.broadcast import broadcast_
from hybridps.tensor_collectives.devices.device import PIECE_BYTES, Device
from hybridps.tensor_collectives.levels import Levels
from hybridps.tensor_collectives.reduce import reduce_
from hybridps.tensor_collectives.reduce_scatter import reduce_scatter
from hybridps.tensor_collectives.tensor import Tensor, part_sizes

DIRECT_PIECE_BYTES = 32 << 20
"""Only packing could overlap with a transfer here, and long messages are faster."""


class Staged:
    """Through host memory, from which the ranks of a node reduce without another copy (`Levels`).

    `note` says why copies to it are slow; empty if they are not.
    """

    name = "staged"
    piece_bytes = PIECE_BYTES

    def __init__(self, levels: Levels, length: int, dtype: np.dtype, devices: Sequence[Device]) -> None:
        self._levels = levels
        self._pinner = next((device for device in devices if device.gpu), devices[0])
        self._host, self.note = self._pinned(length, dtype, len(devices))
        self.buffers = self._host.vectors
        self._part: np.ndarray | None = None

    def allreduce_(self, op: Operation, start: int, stop: int) -> None:
        allreduce_(self._host, self._levels.group, op, start, stop)

    def reduce_(self, root: int, op: Operation, start: int, stop: int) -> None:
        reduce_(self._host, self._levels.group, root, op, start, stop)

    def broadcast_(self, root: int, start: int, stop: int) -> None:
        broadcast_(self._host, self._levels.group, root, start, stop)

    def reduce_scatter(self, op: Operation) -> np.ndarray:
        reduce_scatter(self._host, self._levels.group, self.part, op)
        return self.part

    def allgather_(self) -> None:
        allgather_(self._host, self._levels.group, self.part)

    @property
    def part(self) -> np.ndarray:
        if self._part is None:  # the first use: all ranks get here
            sizes = part_sizes(self._host.length, self._levels.group.size)
            tensor, _ = self._pinned(sizes[0], self._host.dtype, 1)
            self._part = tensor.vectors[0][: sizes[self._levels.group.rank]]
        return self._part

    def _pinned(self, length: int, dtype: np.dtype, vectors: int) -> tuple[Tensor, str]:
        """A tensor in page-locked memory, and why it is not page-locked."""
        tensor = self._levels.tensor(length, dtype.name, vectors)
        mappings = [[vector] for vector in tensor.vectors] if tensor.rows is None else [tensor.vectors]
        notes = [self._pinner.pin(mapping) for mapping in mappings]
        return tensor, next((note for note in notes if note), "")


class Collectives(Protocol):
    """The operations of a Group on arrays in device memory. `MPIGroup` and `NcclGroup` have them."""

    rank: int
    size: int

    def allreduce_(self, array: Any, op: Operation = "sum") -> None: ...

    def broadcast_(self, array: Any, root: int = 0) -> None: ...

    def reduce_scatter(self, array: Any, out: Any, counts: list[int]) -> None: ...

    def allgather(self, array: Any, out: Any, counts: list[int]) -> None: ...


class Direct:
    """From device memory, with NCCL or a CUDA-aware MPI library."""

    piece_bytes = DIRECT_PIECE_BYTES

    def __init__(self, name: str, group: Collectives, length: int, empty: Callable[[int], Any]) -> None:
        self.name = name
        self._group = group
        self._counts = part_sizes(length, group.size)
        self._whole = empty(length)
        self.part = empty(self._counts[group.rank])
        self.buffers = (self._whole,)

    def allreduce_(self, op: Operation, start: int, stop: int) -> None:
        self._group.allreduce_(self._whole[start:stop], op)

    def reduce_(self, root: int, op: Operation, start: int, stop: int) -> None:
        """An allreduce, since a Group has no reduction to one rank."""
        self.allreduce_(op, start, stop)

    def broadcast_(self, root: int, start: int, stop: int) -> None:
        self._group.broadcast_(self._whole[start:stop], root)

    def reduce_scatter(self, op: Operation) -> Any:
        if op == "sum":
            self._group.reduce_scatter(self._whole, self.part, self._counts)
            return self.part
        self._group.allreduce_(self._whole, op)  # a Group can scatter sums only
        first = sum(self._counts[: self._group.rank])
        return self._whole[first : first + len(self.part)]

    def allgather_(self) -> None:
        self._group.allgather(self.part, self._whole, self._counts)


Transport = Staged | Direct
