"""Allgather: every vector of every rank becomes the concatenation of the parts of all ranks."""

from __future__ import annotations

import numpy as np

from hybridps.errors import LayoutError
from hybridps.mpi_groups.group import Group
from hybridps.tensor_collectives.between_nodes import ring
from hybridps.tensor_collectives.between_nodes.talk import Steps, Talk
from hybridps.tensor_collectives.choice import Choice
from hybridps.tensor_collectives.tensor import Rows, Tensor, part_sizes, part_starts, spread


def allgather_(tensor: Tensor, group: Group, part: np.ndarray) -> None:
    """Fill all vectors with the parts of all ranks: the inverse of the scatter in `reduce_scatter`.

    `part`: flat, of the tensor's dtype, with `part_sizes(length, group.size)[group.rank]` elements (else
    LayoutError).
    """
    counts = part_sizes(tensor.length, group.size)
    if part.shape != (counts[group.rank],) or part.dtype != tensor.dtype:
        raise LayoutError(
            f"part has {part.shape} of {part.dtype}, part {group.rank} is ({counts[group.rank]},) of {tensor.dtype}"
        )
    rows = tensor.rows_in(group)
    if rows is not None:
        choice = rows.levels.choose(tensor.length * rows.itemsize)
        if choice.algorithm != "flat" and rows.levels.topology.even:
            _over_levels(rows, choice, part, tensor.length)
            return
    whole = tensor.vectors[0]
    group.allgather(part.view(np.uint8), whole.view(np.uint8), [count * whole.itemsize for count in counts])
    spread(whole, tensor.vectors[1:])


def _over_levels(rows: Rows, choice: Choice, part: np.ndarray, length: int) -> None:
    """The parts of a lane travel along a ring of nodes; each node writes them to all of its rows."""
    levels, array = rows.levels, rows.array
    levels.count(part.nbytes)
    counts = part_sizes(length, levels.group.size)
    starts = part_starts(counts)
    mine = part.view(array.dtype)

    def steps_of(talk: Talk, begin: int, end: int) -> Steps:
        spans = [
            (starts[peer] + min(begin, counts[peer]), starts[peer] + min(end, counts[peer]))
            for peer in levels.lane.peers
        ]
        blocks = [array[0, first:last] for first, last in spans]
        np.copyto(blocks[talk.rank], mine[begin:end])
        yield from ring.allgather(talk, blocks)
        for (first, last), block in zip(spans, blocks, strict=True):
            spread(block, [row[first:last] for row in array[1:]])

    levels.run(choice, None, rows, (0, max(counts)), steps_of, blocks=len(levels.lane.peers))
