"""Allreduce: every vector of every rank becomes the sum, or the mean, of all of them."""

from __future__ import annotations

import numpy as np

from hybridps.mpi_groups.group import Group
from hybridps.tensor_collectives.tensor import Tensor, check_operation, spread


def allreduce_(tensor: Tensor, group: Group, op: str = "sum", start: int = 0, stop: int | None = None) -> None:
    """Reduce elements `start:stop` of all vectors over all ranks of `group`, in place.

    `op`: 'sum', or 'mean' over all vectors of all ranks. float16 is summed in float32. Piece by piece:
    vectors of the worker -> ranks of the group -> vectors of the worker.
    """
    check_operation(op)
    for work, vectors in tensor.pieces(start, tensor.length if stop is None else stop):
        for vector in vectors[1:]:
            np.add(work, vector, out=work)
        group.allreduce_(work)
        if op == "mean":
            np.divide(work, group.size * len(vectors), out=work)
        spread(work, vectors)
