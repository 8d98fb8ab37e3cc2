"""A group's side of its connections with servers. `Client` is the parameter store of a group's leader.

`silent_groups` asks a server which groups are silent, from any process of the job.
"""

from hybridps.ps.client.client import Client
from hybridps.ps.client.silence import silent_groups

__all__ = ["Client", "silent_groups"]
