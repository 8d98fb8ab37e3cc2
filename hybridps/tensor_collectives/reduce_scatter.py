"""Reduce-scatter: every rank receives its part of the sum, or the mean, of all vectors."""

from __future__ import annotations

import numpy as np

from hybridps.errors import LayoutError
from hybridps.mpi_groups.group import Group
from hybridps.tensor_collectives import kernels
from hybridps.tensor_collectives.between_nodes import ring
from hybridps.tensor_collectives.between_nodes.talk import Steps, Talk
from hybridps.tensor_collectives.choice import Choice
from hybridps.tensor_collectives.tensor import (
    GROUP_OPERATION,
    OPERATIONS,
    Rows,
    Tensor,
    check_operation,
    part_sizes,
    part_starts,
    spread,
)


def reduce_scatter(tensor: Tensor, group: Group, out: np.ndarray, op: str = "sum") -> None:
    """Reduce all vectors over all ranks; rank r receives part r in `out`. The tensor is not changed.

    `out`: flat, of the tensor's dtype, with `part_sizes(length, group.size)[group.rank]` elements (else
    LayoutError). `op` and dtypes as in `allreduce_`.
    """
    check_operation(op, tensor.dtype)
    counts = part_sizes(tensor.length, group.size)
    if out.shape != (counts[group.rank],) or out.dtype != tensor.dtype:
        raise LayoutError(
            f"out has {out.shape} of {out.dtype}, part {group.rank} is ({counts[group.rank]},) of {tensor.dtype}"
        )
    rows = tensor.rows_in(group)
    if rows is not None:
        choice = rows.levels.choose(tensor.length * rows.itemsize)
        if choice.algorithm != "flat" and rows.levels.topology.even:
            _over_levels(rows, choice, out, op, tensor.length)
            return
    mine = part_starts(counts)[group.rank]
    combine = OPERATIONS[op]
    for number, (work, vectors) in enumerate(tensor.pieces(0, tensor.length, in_place=False)):
        for vector in vectors[1:]:
            combine(work, vector, out=work, casting="unsafe")
        group.allreduce_(work, GROUP_OPERATION[op])
        begin = number * tensor.piece_length
        first, last = max(mine, begin), min(mine + len(out), begin + len(work))
        if first < last:
            part = work[first - begin : last - begin]
            if op == "mean":
                np.divide(part, tensor.total_in(group), out=part)
            spread(part, [out[first - mine : last - mine]])


def _over_levels(rows: Rows, choice: Choice, out: np.ndarray, op: str, length: int) -> None:
    """Each rank of a lane receives one part: every node combines all of these parts, which then travel along a ring."""
    levels, array = rows.levels, rows.array
    divisor = rows.total if op == "mean" else 1
    levels.count(length * rows.nbytes_of_element)
    counts = part_sizes(length, levels.group.size)
    starts = part_starts(counts)
    code, row = kernels.CODE[op], out.view(array.dtype).reshape(1, -1)

    def steps_of(talk: Talk, begin: int, end: int) -> Steps:
        scratch = talk.scratch.view(rows.exact).reshape(len(levels.lane.peers), -1)
        blocks, left = [], divisor
        for peer, memory in zip(levels.lane.peers, scratch, strict=True):
            block = memory[: max(0, min(end, counts[peer]) - begin)]
            first = starts[peer] + begin
            kernels.fold(array, code, first, first + len(block), block)
            left = talk.divided_(block, divisor)
            blocks.append(block)
        yield from ring.reduce_scatter(talk, blocks)
        mine = blocks[talk.rank]
        kernels.spread(mine, left, row, begin, begin + len(mine), 0, 1)

    levels.run(choice, op, rows, (0, max(counts)), steps_of, blocks=len(levels.lane.peers))
