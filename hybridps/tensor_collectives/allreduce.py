"""Allreduce: every vector of every rank becomes the sum, or the mean, of all of them."""

from __future__ import annotations

import numpy as np

from hybridps.mpi_groups.group import Group
from hybridps.tensor_collectives.tensor import GROUP_OPERATION, OPERATIONS, Tensor, check_operation, spread

SMALL_BYTES = 64 << 10
"""Up to this size the MPI library is faster than two meetings of the ranks of a node (docs/benchmarks.md)."""


def allreduce_(tensor: Tensor, group: Group, op: str = "sum", start: int = 0, stop: int | None = None) -> None:
    """Reduce elements `start:stop` of all vectors over all ranks of `group`, in place.

    `op`: 'sum', 'max', 'min', or 'mean' over all vectors of all ranks (not of integers). float16 is combined in
    float32. A large part of a tensor of `Levels` of this group is reduced in the node's memory; else piece by piece:
    vectors of the worker -> ranks of the group -> vectors of the worker.
    """
    check_operation(op, tensor.dtype)
    stop = tensor.length if stop is None else stop
    levels = tensor.levels
    large = (stop - start) * tensor.dtype.itemsize > SMALL_BYTES
    if large and levels is not None and levels.group is group and tensor.rows is not None:
        levels.allreduce_(tensor.rows, op, len(tensor.vectors), start, stop)
        return
    combine = OPERATIONS[op]
    for work, vectors in tensor.pieces(start, stop):
        for vector in vectors[1:]:
            combine(work, vector, out=work)
        group.allreduce_(work, GROUP_OPERATION[op])
        if op == "mean":
            np.divide(work, group.size * len(vectors), out=work)
        spread(work, vectors)
