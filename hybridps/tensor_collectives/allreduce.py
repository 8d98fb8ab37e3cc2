"""Allreduce: replace every vector of every rank by the sum, or the mean, of all of them."""

from __future__ import annotations

from hybridps.mpi_groups.group import Group
from hybridps.tensor_collectives.between_nodes import ALLREDUCE
from hybridps.tensor_collectives.tensor import AllreducePlan, Tensor, check_operation, spread

MOST_PLANS = 4096
"""The largest number of plans that a tensor keeps. A step needs one for each of its buckets."""


def allreduce_(
    tensor: Tensor, group: Group, op: str = "sum", start: int = 0, stop: int | None = None, divisor: float = 1.0
) -> None:
    """Reduce elements `start:stop` of all vectors over all ranks of `group`, in place.

    `op`: 'sum', 'max', 'min', or 'mean' over all vectors of all ranks. float16 and bfloat16 are combined in float32.
    The result is divided by `divisor` in the same pass. Integers allow neither 'mean' nor a divisor.

    A tensor made by `Levels` of this group is reduced in the memory of each node, then between nodes. Any other tensor
    is reduced in pieces: over the vectors of the worker, then over the ranks of the group. Such tensors must have equal
    lengths and dtypes on all ranks; `Group` says what is checked.
    """
    asked, rows = (op, start, stop, divisor), tensor.rows
    if rows is not None and (plan := rows.plans.get(asked)) is not None:
        levels = rows.levels
        if plan.group is group and plan.chosen is levels.chosen:
            levels.combine_here_(plan.reduction, plan.nbytes)
            return
    check_operation(op, tensor.dtype)
    start, stop = tensor.span(start, stop)
    found = tensor.over_levels(group, stop - start)
    if found is not None:
        rows, choice = found
        levels, targets = rows.levels, (0, len(rows.array))
        if not levels.one_node:
            levels.combine_(rows, choice, op, start, stop, targets, ALLREDUCE[choice.algorithm], divisor)
            return
        reduction = levels.reduction(rows, op, start, stop, targets, divisor)
        nbytes = (stop - start) * rows.nbytes_of_element
        levels.combine_here_(reduction, nbytes)
        if len(rows.plans) >= MOST_PLANS:
            rows.plans.clear()
        rows.plans[asked] = AllreducePlan(group, levels.chosen, reduction, nbytes)
        return
    for _, work, vectors in tensor.combined(group, op, start, stop, divisor=divisor):
        spread(work, vectors)
