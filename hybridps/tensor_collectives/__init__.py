"""Collective operations that treat all the vectors of a worker's devices as one object."""

from hybridps.tensor_collectives.allgather import allgather_
from hybridps.tensor_collectives.allreduce import allreduce_
from hybridps.tensor_collectives.broadcast import broadcast_
from hybridps.tensor_collectives.levels import Levels
from hybridps.tensor_collectives.reduce_scatter import reduce_scatter
from hybridps.tensor_collectives.tensor import Tensor, part_sizes

__all__ = ["Levels", "Tensor", "allgather_", "allreduce_", "broadcast_", "part_sizes", "reduce_scatter"]
