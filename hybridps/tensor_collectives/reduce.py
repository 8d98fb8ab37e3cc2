"""Reduce: replace the vectors of one rank by the sum, or the mean, of all vectors of all ranks."""

from __future__ import annotations

from functools import partial

from hybridps.mpi_groups.group import Group
from hybridps.tensor_collectives.between_nodes import chain
from hybridps.tensor_collectives.tensor import Tensor, check_operation, check_root, spread


def reduce_(
    tensor: Tensor, group: Group, root: int = 0, op: str = "sum", start: int = 0, stop: int | None = None
) -> None:
    """Replace elements `start:stop` of the vectors of rank `root` by `op` over all vectors of all ranks.

    The vectors of the other ranks are not changed. `op` and dtypes as in `allreduce_`.
    """
    check_operation(op, tensor.dtype)
    check_root(root, group.size)
    start, stop = tensor.span(start, stop)
    if group.size == len(tensor.vectors) == 1:
        return
    found = tensor.over_levels(group, stop - start)
    if found is not None:
        rows, choice = found
        topology = rows.levels.topology
        home, local = topology.place_of(root)
        targets = rows.of_rank(local) if home == topology.node else (0, 0)
        between = partial(chain.reduce, root=topology.in_lane(home))
        rows.levels.combine_(rows, choice, op, start, stop, targets, between)
        return
    for _, work, vectors in tensor.combined(group, op, start, stop, in_place=group.rank == root):
        if group.rank == root:
            spread(work, vectors)
