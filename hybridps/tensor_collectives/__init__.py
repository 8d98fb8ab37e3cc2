"""Collective operations that treat the vectors of all devices of a worker as one object.

A caller makes `Levels` for a group, allocates a `Tensor` with them, and calls the operations on that tensor.
"""

from hybridps.tensor_collectives import devices
from hybridps.tensor_collectives.allgather import allgather_
from hybridps.tensor_collectives.allreduce import allreduce_
from hybridps.tensor_collectives.background import Background, Pending
from hybridps.tensor_collectives.broadcast import broadcast_
from hybridps.tensor_collectives.choice import ALGORITHMS, BUILT_IN, Choice, Chooser, Entry, Tuning
from hybridps.tensor_collectives.levels import Levels
from hybridps.tensor_collectives.reduce import reduce_
from hybridps.tensor_collectives.reduce_scatter import reduce_scatter
from hybridps.tensor_collectives.signs_of_life import SignsOfLife
from hybridps.tensor_collectives.tensor import Tensor, part_sizes

__all__ = [
    "ALGORITHMS",
    "BUILT_IN",
    "Background",
    "Choice",
    "Chooser",
    "Entry",
    "Levels",
    "Pending",
    "SignsOfLife",
    "Tensor",
    "Tuning",
    "allgather_",
    "allreduce_",
    "broadcast_",
    "part_sizes",
    "reduce_",
    "reduce_scatter",
    "devices",
]
