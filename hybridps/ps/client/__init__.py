"""A group's side of its connections with servers. `Client` is the parameter store of a group's leader.

`ask` asks a server one thing, and `silent_groups` which groups are silent, from any process of the job.
"""

from hybridps.ps.client.asking import ask, silent_groups
from hybridps.ps.client.client import Client

__all__ = ["Client", "ask", "silent_groups"]
