"""Reduce-scatter: give every rank its part of the sum, or the mean, of all vectors."""

from __future__ import annotations

import numpy as np

from hybridps.mpi_groups.group import Group
from hybridps.tensor_collectives import kernels
from hybridps.tensor_collectives.between_nodes import Steps, Talk, ring
from hybridps.tensor_collectives.choice import Choice
from hybridps.tensor_collectives.tensor import Rows, Tensor, check_operation, check_part, spread


def reduce_scatter(tensor: Tensor, group: Group, out: np.ndarray, op: str = "sum") -> None:
    """Reduce all vectors over all ranks; rank r receives part r in `out`. The tensor is not changed.

    `out`: flat, of the tensor's dtype, with `part_sizes(length, group.size)[group.rank]` elements. Raises LayoutError
    otherwise. `op` and dtypes as in `allreduce_`.
    """
    check_operation(op, tensor.dtype)
    spans = check_part(tensor, group, out, "out")
    found = tensor.over_levels(group, tensor.length)
    if found is not None and found[0].levels.topology.even:
        _over_levels(*found, out, op, spans)
        return
    mine, end = spans[group.rank]
    for begin, work, _ in tensor.combined(group, op, 0, tensor.length, in_place=False):
        first, last = max(mine, begin), min(end, begin + len(work))
        if first < last:
            spread(work[first - begin : last - begin], [out[first - mine : last - mine]])


def _over_levels(rows: Rows, choice: Choice, out: np.ndarray, op: str, spans: list[tuple[int, int]]) -> None:
    """Combine on each node the parts of all ranks of a lane, then reduce them along a ring of nodes."""
    levels, array = rows.levels, rows.array
    divisor = float(rows.total) if op == "mean" else 1.0
    levels.count(spans[-1][1] * rows.nbytes_of_element)
    peers = [spans[peer] for peer in levels.lane.peers]
    code, row = kernels.CODE[op], out.view(array.dtype).reshape(1, -1)

    def steps_of(talk: Talk, begin: int, end: int) -> Steps:
        scratch = talk.scratch.view(rows.exact).reshape(len(peers), -1)
        blocks, left = [], divisor
        for (start, stop), memory in zip(peers, scratch, strict=True):
            first, last = min(start + begin, stop), min(start + end, stop)
            block = memory[: last - first]
            kernels.fold(array, code, first, last, block)
            left = talk.divided_(block, divisor)
            blocks.append(block)
        yield from ring.reduce_scatter(talk, blocks)
        mine = blocks[talk.rank]
        kernels.spread(mine, left, row, begin, begin + len(mine), 0, 1)

    longest = spans[0][1]
    levels.run(choice, op, rows, (0, longest), steps_of, blocks=len(peers))
