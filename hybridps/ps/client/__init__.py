"""A group at its servers. `Client` is the parameter store of a group's leader: callers open one."""

from hybridps.ps.client.client import Client

__all__ = ["Client"]
