"""A group at its servers. `Client` is the parameter store of a group's leader: callers open one.

`silent_groups` asks a server who is silent, from any process of the job.
"""

from hybridps.ps.client.client import Client
from hybridps.ps.client.silence import silent_groups

__all__ = ["Client", "silent_groups"]
