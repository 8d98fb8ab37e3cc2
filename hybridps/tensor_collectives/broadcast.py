"""Broadcast: copy the first vector of one rank to every vector of every rank."""

from __future__ import annotations

from hybridps.mpi_groups.group import Group
from hybridps.tensor_collectives.between_nodes import Steps, Talk, chain
from hybridps.tensor_collectives.choice import Choice
from hybridps.tensor_collectives.tensor import Rows, Tensor, check_root, spread


def broadcast_(tensor: Tensor, group: Group, root: int = 0, start: int = 0, stop: int | None = None) -> None:
    """Copy elements `start:stop` of vector 0 of rank `root` to all vectors of all ranks, in place."""
    check_root(root, group.size)
    start, stop = tensor.span(start, stop)
    if group.size == len(tensor.vectors) == 1:
        return
    found = tensor.over_levels(group, stop - start)
    if found is not None:
        _over_levels(*found, root, start, stop)
        return
    source = tensor.vectors[0][start:stop]
    group.broadcast_(source, root)
    spread(source, [vector[start:stop] for vector in tensor.vectors[1:]])


def _over_levels(rows: Rows, choice: Choice, root: int, start: int, stop: int) -> None:
    """Send the lane's part of the root's vector to the other nodes, which copy it to all of their rows."""
    levels, array = rows.levels, rows.array
    levels.count((stop - start) * rows.itemsize)
    home, local = levels.topology.place_of(root)
    # The root's node reads the part from the root's row. On other nodes it arrives in row 0.
    source = rows.of_rank(local)[0] if home == levels.topology.node else 0
    lane_root = levels.topology.in_lane(home)

    def steps_of(talk: Talk, begin: int, end: int) -> Steps:
        part = array[source, begin:end]
        yield from chain.broadcast(talk, part, lane_root)
        spread(part, [row[begin:end] for number, row in enumerate(array) if number != source])

    levels.run(choice, None, rows, levels.part(start, stop, rows.itemsize), steps_of)
