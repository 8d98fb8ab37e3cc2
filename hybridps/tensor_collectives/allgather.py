"""Allgather: concatenate the parts of all ranks into every vector of every rank."""

from __future__ import annotations

import numpy as np

from hybridps.mpi_groups.group import Group
from hybridps.tensor_collectives.between_nodes import Steps, Talk, ring
from hybridps.tensor_collectives.choice import Choice
from hybridps.tensor_collectives.tensor import Rows, Tensor, check_part, spread


def allgather_(tensor: Tensor, group: Group, part: np.ndarray) -> None:
    """Fill all vectors with the parts of all ranks: the inverse of the scatter in `reduce_scatter`.

    `part`: flat, of the tensor's dtype, with `part_sizes(length, group.size)[group.rank]` elements. Raises LayoutError
    otherwise.
    """
    spans = check_part(tensor, group, part, "part")
    found = tensor.over_levels(group, tensor.length)
    if found is not None and found[0].levels.topology.even:
        _over_levels(*found, part, spans)
        return
    whole = tensor.vectors[0]
    whole[slice(*spans[group.rank])] = part
    for root, (start, stop) in enumerate(spans):
        group.broadcast_(whole[start:stop], root)
    spread(whole, tensor.vectors[1:])


def _over_levels(rows: Rows, choice: Choice, part: np.ndarray, spans: list[tuple[int, int]]) -> None:
    """Send the parts of a lane along a ring of nodes. Each node writes them to all of its rows."""
    levels, array = rows.levels, rows.array
    levels.count(part.nbytes)
    peers = [spans[peer] for peer in levels.lane.peers]
    mine = part.view(array.dtype)

    def steps_of(talk: Talk, begin: int, end: int) -> Steps:
        here = [slice(min(start + begin, stop), min(start + end, stop)) for start, stop in peers]
        blocks = [array[0, span] for span in here]
        np.copyto(blocks[talk.rank], mine[begin:end])
        yield from ring.allgather(talk, blocks)
        for span, block in zip(here, blocks, strict=True):
            spread(block, [row[span] for row in array[1:]])

    longest = spans[0][1]
    levels.run(choice, None, rows, (0, longest), steps_of, blocks=len(peers))
