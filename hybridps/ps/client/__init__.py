"""A group at its servers. `Client` is the parameter store of a group's leader: callers open one.

A caller that has several requests under way at once also uses `Operation`, and `OperationSequence` for requests that
follow each other.
"""

from hybridps.ps.client.client import Client
from hybridps.ps.client.operations import Operation, OperationSequence

__all__ = ["Client", "Operation", "OperationSequence"]
