"""Allreduce: every vector of every rank becomes the sum, or the mean, of all of them."""

from __future__ import annotations

import numpy as np

from hybridps.mpi_groups.group import Group
from hybridps.tensor_collectives import kernels
from hybridps.tensor_collectives.between_nodes import ALLREDUCE, Steps, Talk
from hybridps.tensor_collectives.choice import Choice
from hybridps.tensor_collectives.tensor import GROUP_OPERATION, OPERATIONS, Rows, Tensor, check_operation, spread


def allreduce_(tensor: Tensor, group: Group, op: str = "sum", start: int = 0, stop: int | None = None) -> None:
    """Reduce elements `start:stop` of all vectors over all ranks of `group`, in place.

    `op`: 'sum', 'max', 'min', or 'mean' over all vectors of all ranks (not of integers). float16 and bfloat16 are
    combined in float32. A tensor made by `Levels` of this group is reduced in the memory of each node, then between
    nodes. Any other tensor is reduced piece by piece: the vectors of the worker, then the ranks of the group. Such
    tensors must have equal lengths and dtypes on all ranks; `Group` says what is checked.
    """
    check_operation(op, tensor.dtype)
    start, stop = tensor.span(start, stop)
    rows = tensor.rows_in(group)
    if rows is not None:
        choice = rows.levels.choose((stop - start) * rows.itemsize)
        if choice.algorithm != "flat":
            _over_levels(rows, choice, op, start, stop)
            return
    combine = OPERATIONS[op]
    for work, vectors in tensor.pieces(start, stop):
        for vector in vectors[1:]:
            combine(work, vector, out=work, casting="unsafe")
        group.allreduce_(work, GROUP_OPERATION[op])
        if op == "mean":
            np.divide(work, tensor.total_in(group), out=work)
        spread(work, vectors)


def _over_levels(rows: Rows, choice: Choice, op: str, start: int, stop: int) -> None:
    levels, array = rows.levels, rows.array
    divisor = rows.total if op == "mean" else 1
    levels.count((stop - start) * rows.nbytes_of_element)
    if levels.one_node:
        levels.combine_(rows, op, divisor, start, stop)
        return
    code, algorithm = kernels.CODE[op], ALLREDUCE[choice.algorithm]

    def steps_of(talk: Talk, begin: int, end: int) -> Steps:
        total = array[0, begin:end] if array.dtype == rows.exact else talk.scratch.view(rows.exact)[: end - begin]
        kernels.fold(array, code, begin, end, total)
        left = talk.divided_(total, divisor)
        yield from algorithm(talk, total)
        kernels.spread(total, left, array, begin, end, 0, len(array))

    # Each lane has a part of its own, so that the ranks of a node need not meet between chunks.
    levels.run(choice, op, rows, levels.part(start, stop, rows.itemsize), steps_of)
