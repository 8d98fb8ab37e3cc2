"""The tensor: the object that collectives work on."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from hybridps.errors import LayoutError
from hybridps.memory import DTYPES
from hybridps.mpi_groups.group import Group, Operation
from hybridps.tensor_collectives.kernels import BITS_OF, BLOCK, exact_dtype, prepare

if TYPE_CHECKING:
    from hybridps.tensor_collectives.levels import Levels

OPERATIONS: dict[str, np.ufunc] = {"sum": np.add, "mean": np.add, "max": np.maximum, "min": np.minimum}

GROUP_OPERATION: dict[str, Operation] = {"sum": "sum", "mean": "sum", "max": "max", "min": "min"}
"""The operation of a Group for each operation; collectives divide for a mean."""

TENSOR_DTYPES = (*DTYPES, "bfloat16", "int32", "int64")
"""bfloat16 is the one of the package ml_dtypes."""

PIECE_BYTES = 2 << 20
"""Collectives work in pieces of about this size, which stay in cache between the levels."""


class Rows:
    """All vectors of the ranks of a node, as rows of shared memory: of one of `TENSOR_DTYPES`, or as bits.

    `array`: of shape (all vectors, at least length), C-contiguous. `vectors`: the number of vectors of each rank of the
    node; `total`: the number of vectors of all ranks of the group.
    """

    def __init__(self, array: np.ndarray, vectors: Sequence[int], total: int, levels: Levels) -> None:
        self.array = array
        self.total = total
        self.levels = levels
        self._starts = [0, *itertools.accumulate(vectors)]
        self.nbytes_of_element = vectors[levels.node.rank] * array.itemsize
        """Bytes of one element in all of this rank's vectors."""
        self.itemsize = array.itemsize
        self.exact = exact_dtype(array)
        """The dtype in which rows are combined."""
        self.scratch = np.empty(BLOCK, self.exact)
        prepare(array, self.scratch)

    def of_rank(self, rank: int) -> tuple[int, int]:
        """A rank's rows: the first, and the last + 1."""
        return self._starts[rank], self._starts[rank + 1]


class Tensor:
    """The vectors of one worker's devices, taken as one object (MXNET-MPI, 2018).

    `vectors`: at least one flat, contiguous array each, all of the same length and dtype (one of
    `TENSOR_DTYPES`). The arrays are used in place and not replaced.
    """

    def __init__(self, vectors: Sequence[np.ndarray], rows: Rows | None = None) -> None:
        """Raises LayoutError if the vectors do not fit together. `rows`: given by `Levels.tensor`."""
        if not vectors:
            raise LayoutError("a tensor needs at least one vector")
        first = vectors[0]
        if first.dtype.name not in TENSOR_DTYPES or not first.dtype.isnative:
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
        """All vectors of the node, if its ranks share their memory."""
        self.length = first.size
        self.dtype = first.dtype
        self.exact = np.dtype(np.float32) if first.dtype.name in BITS_OF else first.dtype
        """The dtype in which vectors are combined: float32 for half precisions, which are rounded once."""
        self.piece_length = max(1, PIECE_BYTES // self.exact.itemsize)
        self._scratch = np.empty(0, self.exact)

    def rows_in(self, group: Group) -> Rows | None:
        """The rows, if the tensor was made by Levels of `group`."""
        return self.rows if self.rows is not None and self.rows.levels.group is group else None

    def total_in(self, group: Group) -> int:
        """The number of vectors of all ranks. Without Levels, every rank must have as many as this one."""
        rows = self.rows_in(group)
        return rows.total if rows is not None else group.size * len(self.vectors)

    def span(self, start: int, stop: int | None) -> tuple[int, int]:
        """`start:stop`, to the end if `stop` is None. Raises LayoutError if the span exceeds the vectors."""
        stop = self.length if stop is None else stop
        if not 0 <= start <= stop <= self.length:
            raise LayoutError(f"elements {start}:{stop} are not within the {self.length} of the tensor")
        return start, stop

    def pieces(self, start: int, stop: int, in_place: bool = True) -> Iterator[tuple[np.ndarray, list[np.ndarray]]]:
        """For each piece of elements `start:stop`: an array of dtype `exact` to work in, and the vectors.

        The array is vector 0 itself where it has that dtype and `in_place` is true; else scratch with its values.
        """
        for begin in range(start, stop, self.piece_length):
            end = min(begin + self.piece_length, stop)
            vectors = [vector[begin:end] for vector in self.vectors]
            if in_place and self.exact == self.dtype:
                yield vectors[0], vectors
            else:
                work = self._take_scratch(end - begin)
                np.copyto(work, vectors[0])
                yield work, vectors

    def _take_scratch(self, length: int) -> np.ndarray:
        if len(self._scratch) < length:
            self._scratch = np.empty(min(self.piece_length, self.length), self.exact)
        return self._scratch[:length]


def spread(work: np.ndarray, vectors: Sequence[np.ndarray]) -> None:
    """Write the result in `work` to all vectors of the piece, rounded to their dtype."""
    for vector in vectors:
        if vector is not work:
            np.copyto(vector, work, casting="unsafe")


def part_sizes(length: int, size: int) -> list[int]:
    """The number of elements of each rank's part of a vector: as equal as possible, the larger parts first."""
    return [length // size + (rank < length % size) for rank in range(size)]


def part_starts(counts: Sequence[int]) -> list[int]:
    """Where each part begins."""
    return [0, *itertools.accumulate(counts)][:-1]


def check_operation(op: str, dtype: np.dtype) -> None:
    if op not in OPERATIONS:
        raise LayoutError(f"operation {op!r} is unknown: use one of {', '.join(OPERATIONS)}")
    if op == "mean" and dtype.kind == "i":
        raise LayoutError(f"the mean of {dtype} is not an integer: use 'sum'")


def check_root(root: int, size: int) -> None:
    if not 0 <= root < size:
        raise LayoutError(f"rank {root} is not in the group: its ranks are 0 to {size - 1}")
