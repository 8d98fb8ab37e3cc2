"""Reduce: the vectors of one rank become the sum, or the mean, of all vectors of all ranks."""

from __future__ import annotations

import numpy as np

from hybridps.mpi_groups.group import Group
from hybridps.tensor_collectives import kernels
from hybridps.tensor_collectives.between_nodes import chain
from hybridps.tensor_collectives.between_nodes.talk import Steps, Talk
from hybridps.tensor_collectives.choice import Choice
from hybridps.tensor_collectives.tensor import (
    GROUP_OPERATION,
    OPERATIONS,
    Rows,
    Tensor,
    check_operation,
    check_root,
    spread,
)


def reduce_(
    tensor: Tensor, group: Group, root: int = 0, op: str = "sum", start: int = 0, stop: int | None = None
) -> None:
    """Elements `start:stop` of the vectors of rank `root` become `op` over all vectors of all ranks.

    The vectors of the other ranks are not changed. `op` and dtypes as in `allreduce_`.
    """
    check_operation(op, tensor.dtype)
    check_root(root, group.size)
    start, stop = tensor.span(start, stop)
    rows = tensor.rows_in(group)
    if rows is not None:
        choice = rows.levels.choose((stop - start) * rows.itemsize)
        if choice.algorithm != "flat":
            _over_levels(rows, choice, root, op, start, stop)
            return
    combine = OPERATIONS[op]
    for work, vectors in tensor.pieces(start, stop, in_place=group.rank == root):
        for vector in vectors[1:]:
            combine(work, vector, out=work, casting="unsafe")
        group.allreduce_(work, GROUP_OPERATION[op])
        if group.rank == root:
            if op == "mean":
                np.divide(work, tensor.total_in(group), out=work)
            spread(work, vectors)


def _over_levels(rows: Rows, choice: Choice, root: int, op: str, start: int, stop: int) -> None:
    levels, array = rows.levels, rows.array
    divisor = rows.total if op == "mean" else 1
    levels.count((stop - start) * rows.nbytes_of_element)
    home, local = levels.topology.place_of(root)
    if levels.one_node:
        levels.combine_(rows, op, divisor, start, stop, of_rank=local)
        return
    code, lane_root = kernels.CODE[op], levels.topology.in_lane(home)

    def steps_of(talk: Talk, begin: int, end: int) -> Steps:
        total = talk.scratch.view(rows.exact)[: end - begin]
        kernels.fold(array, code, begin, end, total)
        left = talk.divided_(total, divisor)
        yield from chain.reduce(talk, total, lane_root)
        if home == levels.topology.node:
            kernels.spread(total, left, array, begin, end, *rows.of_rank(local))

    levels.run(choice, op, rows, levels.part(start, stop, rows.itemsize), steps_of)
