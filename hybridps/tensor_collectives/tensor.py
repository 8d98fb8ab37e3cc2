"""The tensor: the object that collectives work on."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hybridps.codecs import Codec
from hybridps.errors import LayoutError
from hybridps.mpi_groups.group import UFUNC, Group, Operation
from hybridps.tensor_collectives.choice import Choice
from hybridps.tensor_collectives.kernels import BLOCK

if TYPE_CHECKING:
    from hybridps.tensor_collectives.devices import DeviceTensor
    from hybridps.tensor_collectives.levels import Levels
    from hybridps.tensor_collectives.node.node import Reduction

GROUP_OPERATION: dict[str, Operation] = {"sum": "sum", "mean": "sum", "max": "max", "min": "min"}
"""The Group operation that implements each operation. For a mean, the collective divides the sum."""

EXACT = {
    "float16": "float32",
    "float32": "float32",
    "float64": "float64",
    "bfloat16": "float32",
    "int32": "int32",
    "int64": "int64",
}
"""For each dtype of vectors, the dtype in which they are combined. Half precisions are rounded once, at the end.
bfloat16 is that of the package ml_dtypes."""

PIECE_BYTES = 2 << 20
"""Collectives work in pieces of about this size, which stay in cache between the levels."""


class Rows:
    """All vectors of the ranks of a node, as rows of shared memory, in a dtype of `EXACT` or as bits.

    `array`: of shape (all vectors, at least length), C-contiguous. `exact`: the dtype in which rows are combined.
    `vectors`: the number of vectors of each rank of the node. `total`: the number of vectors of all ranks of the group.
    """

    def __init__(self, array: np.ndarray, exact: np.dtype, vectors: Sequence[int], total: int, levels: Levels) -> None:
        self.array = array
        self.exact = exact
        self.total = total
        self.levels = levels
        self._starts = [0, *itertools.accumulate(vectors)]
        self.nbytes_of_element = vectors[levels.node.rank] * array.itemsize
        """Bytes of one element in all of this rank's vectors."""
        self.itemsize = array.itemsize
        self.row = array[0] if array.dtype == exact else None
        """Row 0, if blocks can be combined in it; None if the rows hold bits."""
        self.scratch = np.empty(BLOCK, exact)
        self.looks = 0
        """1 if ranks on a single node search the rows for NaN and Inf as they combine them, else 0."""
        self.codec: Codec | None = None
        """The codec for sums of these rows between nodes. None: the codec of the levels."""
        self.plans: dict[tuple[str, int, int | None, float], AllreducePlan] = {}
        """The plans of earlier operations, which may be repeated."""

    def of_rank(self, rank: int) -> tuple[int, int]:
        """Return the rows of a rank: the first, and the last + 1."""
        return self._starts[rank], self._starts[rank + 1]


@dataclass(frozen=True, slots=True)
class AllreducePlan:
    """An allreduce on a single node that can be repeated, while the group and the choices are the same."""

    group: Group
    chosen: dict[int, Choice]
    reduction: Reduction
    nbytes: int


class Tensor:
    """The vectors of one worker's devices, treated as one object (MXNET-MPI, 2018).

    `vectors`: at least one flat, contiguous array; all have the same length and dtype (one of `EXACT`). The arrays are
    used in place and not replaced.
    """

    def __init__(self, vectors: Sequence[np.ndarray], rows: Rows | None = None) -> None:
        """Raises LayoutError if the vectors do not match each other. `rows`: given by `Levels.tensor`."""
        if not vectors:
            raise LayoutError("a tensor needs at least one vector")
        first = vectors[0]
        check_dtype(first.dtype.name if first.dtype.isnative else first.dtype.str)
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
        self.exact = np.dtype(EXACT[first.dtype.name])
        """The dtype in which vectors are combined."""
        self._scratch = np.empty(0, self.exact)

    def looks_for_not_finite(self, length: int) -> bool:
        """Search for NaN and Inf from now on, if the ranks that combine `length` elements can do that.

        Returns whether they search.
        """
        rows = self.rows
        if rows is None or not rows.levels.one_node or self.over_levels(rows.levels.group, length) is None:
            return False
        if not rows.looks:
            rows.looks = 1
            rows.plans.clear()
        return True

    def first_not_finite(self) -> int | None:
        """Return the first element of this worker's vectors that was NaN or Inf before the last combination.

        Use it only if `looks_for_not_finite` was true for the number of elements combined. Of several workers with such
        elements, at least one gets its own; the others may get None.
        """
        rows = self.rows
        return None if rows is None else rows.levels.node.first_not_finite(rows.of_rank(rows.levels.node.rank))

    def rows_in(self, group: Group) -> Rows | None:
        """Return the rows if the tensor was made by Levels of `group`, else None."""
        return self.rows if self.rows is not None and self.rows.levels.group is group else None

    def over_levels(self, group: Group, length: int) -> tuple[Rows, Choice] | None:
        """Return the rows, and the choice for `length` elements of each. None: use the operations of `group`."""
        rows = self.rows
        if rows is None or rows.levels.group is not group:
            return None
        choice = rows.levels.choose(length * rows.itemsize)
        return (rows, choice) if choice.algorithm != "flat" else None

    def span(self, start: int, stop: int | None) -> tuple[int, int]:
        """Return `start:stop`, where None means the end. Raises LayoutError if the span exceeds the vectors."""
        stop = self.length if stop is None else stop
        if not 0 <= start <= stop <= self.length:
            raise LayoutError(f"elements {start}:{stop} are not within the {self.length} of the tensor")
        return start, stop

    def combined(
        self, group: Group, op: str, start: int, stop: int, in_place: bool = True, divisor: float = 1.0
    ) -> Iterator[tuple[int, np.ndarray, list[np.ndarray]]]:
        """Combine elements `start:stop` over all ranks, piece by piece, with the operations of `group`.

        Yields for each piece where it begins, its combination divided by `divisor` (of dtype `exact`), and its vectors.
        The combination lies in vector 0 itself if that has the dtype `exact` and `in_place` is true.
        """
        in_place = in_place and self.exact == self.dtype
        step = PIECE_BYTES // self.exact.itemsize  # the same on all ranks, whatever vectors each has
        rows = self.rows_in(group)
        if op == "mean":
            # Without Levels, every rank must have as many vectors as this one.
            divisor *= rows.total if rows is not None else group.size * len(self.vectors)
        for begin in range(start, stop, step):
            vectors = [vector[begin : min(begin + step, stop)] for vector in self.vectors]
            work = vectors[0]
            if not in_place:
                if len(self._scratch) < len(work):
                    self._scratch = np.empty(min(step, self.length), self.exact)
                work = self._scratch[: len(work)]
                np.copyto(work, vectors[0])
            for vector in vectors[1:]:
                UFUNC[GROUP_OPERATION[op]](work, vector, out=work, casting="unsafe")
            group.allreduce_(work, GROUP_OPERATION[op])
            if divisor != 1:
                np.divide(work, divisor, out=work)
            yield begin, work, vectors


def spread(work: np.ndarray, vectors: Sequence[np.ndarray]) -> None:
    """Write the result in `work` to all vectors of the piece, rounded to their dtype."""
    for vector in vectors:
        if vector is not work:
            np.copyto(vector, work, casting="unsafe")


def part_sizes(length: int, size: int) -> list[int]:
    """Return the number of elements of each rank's part of a vector: as equal as possible, larger parts first."""
    return [length // size + (rank < length % size) for rank in range(size)]


def check_part(tensor: Tensor | DeviceTensor, group: Group, part: np.ndarray, name: str) -> list[tuple[int, int]]:
    """Return the spans of all parts. Raises LayoutError unless `part`, called `name`, can be this rank's part."""
    spans = list(itertools.pairwise([0, *itertools.accumulate(part_sizes(tensor.length, group.size))]))
    start, stop = spans[group.rank]
    if part.shape != (stop - start,) or part.dtype != tensor.dtype:
        raise LayoutError(
            f"{name} has {part.shape} of {part.dtype}, part {group.rank} is ({stop - start},) of {tensor.dtype}"
        )
    return spans


def check_dtype(name: str) -> None:
    if name not in EXACT:
        raise LayoutError(f"a tensor of dtype {name} cannot be reduced: use one of {', '.join(EXACT)}")


def check_operation(op: str, dtype: np.dtype) -> None:
    if op not in GROUP_OPERATION:
        raise LayoutError(f"operation {op!r} is unknown: use one of {', '.join(GROUP_OPERATION)}")
    if op == "mean" and dtype.kind == "i":
        raise LayoutError(f"the mean of {dtype} is not an integer: use 'sum'")


def check_root(root: int, size: int) -> None:
    if not 0 <= root < size:
        raise LayoutError(f"rank {root} is not in the group: its ranks are 0 to {size - 1}")
