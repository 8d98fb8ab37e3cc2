"""Broadcast: every vector of every rank becomes the first vector of one rank."""

from __future__ import annotations

from hybridps.mpi_groups.group import Group
from hybridps.tensor_collectives.tensor import Tensor, spread


def broadcast_(tensor: Tensor, group: Group, root: int = 0, start: int = 0, stop: int | None = None) -> None:
    """Copy elements `start:stop` of vector 0 of rank `root` to all vectors of all ranks, in place."""
    stop = tensor.length if stop is None else stop
    source = tensor.vectors[0][start:stop]
    group.broadcast_(source, root)
    spread(source, [vector[start:stop] for vector in tensor.vectors[1:]])
