"""Reduce-scatter: every rank receives its part of the sum, or the mean, of all vectors."""

from __future__ import annotations

import numpy as np

from hybridps.errors import LayoutError
from hybridps.mpi_groups.group import Group
from hybridps.tensor_collectives.tensor import Tensor, check_operation, local_sum, part_sizes


def reduce_scatter(tensor: Tensor, group: Group, out: np.ndarray, op: str = "sum") -> None:
    """Reduce all vectors over all ranks; rank r receives part r in `out`. The tensor stays as it is.

    `out`: flat, of the tensor's dtype, with `part_sizes(length, group.size)[group.rank]` elements (else
    LayoutError). `op`: 'sum', or 'mean' over all vectors of all ranks.
    """
    if op not in ("sum", "mean"):
        raise LayoutError(f"operation {op!r} is unknown to reduce-scatter: use 'sum' or 'mean'")
    check_operation(op, tensor.dtype)
    counts = part_sizes(tensor.length, group.size)
    if out.shape != (counts[group.rank],) or out.dtype != tensor.dtype:
        raise LayoutError(
            f"out has {out.shape} of {out.dtype}, part {group.rank} is ({counts[group.rank]},) of {tensor.dtype}"
        )
    part = out if out.dtype == tensor.exact else np.empty(out.shape, tensor.exact)
    group.reduce_scatter(local_sum(tensor), part, counts)
    if op == "mean":
        np.divide(part, group.size * len(tensor.vectors), out=part)
    if part is not out:
        np.copyto(out, part, casting="same_kind")
