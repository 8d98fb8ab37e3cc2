"""The object that tensor collectives work on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from hybridps.errors import LayoutError
from hybridps.memory import DTYPES
from hybridps.mpi_groups.group import Operation

if TYPE_CHECKING:
    from hybridps.tensor_collectives.levels import Levels

OPERATIONS: dict[str, np.ufunc] = {"sum": np.add, "mean": np.add, "max": np.maximum, "min": np.minimum}

GROUP_OPERATION: dict[str, Operation] = {"sum": "sum", "mean": "sum", "max": "max", "min": "min"}
"""What a Group does for an operation; a mean is divided here."""

TENSOR_DTYPES = (*DTYPES, "int32", "int64")

PIECE_BYTES = 2 << 20
"""Work is done in pieces of about this size, which stay in cache between the levels."""


class Tensor:
    """The vectors of one worker's devices, taken as one object (MXNET-MPI, 2018).

    `vectors`: at least one flat, contiguous array each, all of the same length and dtype (one of
    `TENSOR_DTYPES`). The arrays are used in place and never replaced.
    """

    def __init__(
        self, vectors: Sequence[np.ndarray], rows: np.ndarray | None = None, levels: Levels | None = None
    ) -> None:
        """Raises LayoutError if the vectors do not fit together.

        `rows` and `levels`: given by `Levels.tensor`, where the vectors are rows of memory that the node shares.
        """
        if not vectors:
            raise LayoutError("a tensor needs at least one vector")
        first = vectors[0]
        if first.dtype.name not in TENSOR_DTYPES:
            known = ", ".join(TENSOR_DTYPES)
            raise LayoutError(f"a tensor of dtype {first.dtype} cannot be reduced: use one of {known}")
        for number, vector in enumerate(vectors):
            if vector.ndim != 1 or not vector.flags.c_contiguous:
                raise LayoutError(f"vector {number} has shape {vector.shape}: flat contiguous arrays are needed")
            if vector.shape != first.shape or vector.dtype != first.dtype:
                raise LayoutError(
                    f"vector {number} has {vector.size} elements of {vector.dtype}, "
                    f"vector 0 has {first.size} of {first.dtype}: they must be alike"
                )
        self.vectors = tuple(vectors)
        self.rows = rows
        self.levels = levels
        self.length = first.size
        self.dtype = first.dtype
        # float16 is summed in float32, and rounded once.
        self.exact = np.dtype(np.float32) if first.dtype == np.float16 else first.dtype
        self._piece = max(1, PIECE_BYTES // self.exact.itemsize)
        half = self.exact != self.dtype
        self._scratch = np.empty(min(self._piece, self.length), self.exact) if half else None

    def pieces(self, start: int, stop: int) -> Iterator[tuple[np.ndarray, list[np.ndarray]]]:
        """For each piece of elements `start:stop`: an array of dtype `exact` to work in, and the vectors.

        The working array is vector 0 itself where the dtypes agree; else a scratch with its values.
        """
        for begin in range(start, stop, self._piece):
            end = min(begin + self._piece, stop)
            vectors = [vector[begin:end] for vector in self.vectors]
            if self._scratch is None:
                yield vectors[0], vectors
            else:
                work = self._scratch[: end - begin]
                np.copyto(work, vectors[0])
                yield work, vectors


def spread(work: np.ndarray, vectors: list[np.ndarray]) -> None:
    """Write the result in `work` to all vectors of the piece."""
    for vector in vectors:
        if vector is not work:
            np.copyto(vector, work, casting="same_kind")


def part_sizes(length: int, size: int) -> list[int]:
    """Elements of each rank's part of a vector: as equal as possible, the larger ones first."""
    return [length // size + (rank < length % size) for rank in range(size)]


def local_sum(tensor: Tensor) -> np.ndarray:
    """The sum of the tensor's vectors, in dtype `exact`; vector 0 itself if it is the only one."""
    total = tensor.vectors[0].astype(tensor.exact, copy=len(tensor.vectors) > 1)
    for vector in tensor.vectors[1:]:
        np.add(total, vector, out=total)
    return total


def check_operation(op: str, dtype: np.dtype) -> None:
    if op not in OPERATIONS:
        raise LayoutError(f"operation {op!r} is unknown: use one of {', '.join(OPERATIONS)}")
    if op == "mean" and dtype.kind == "i":
        raise LayoutError(f"the mean of {dtype} is no {dtype}: use 'sum'")
