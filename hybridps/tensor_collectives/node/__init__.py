"""The ranks of a node. They share memory, meet at a barrier, and reduce straight out of each other's memory.

A caller uses `Node`, mostly through `Levels`.
"""

from hybridps.tensor_collectives.node.node import Node

__all__ = ["Node"]
