"""What a server keeps when its process dies: `KeptMemory`, and `supervise`, which starts the process again.

A supervisor creates the memory. Each life of the server opens it, reads how far the last one was, and continues. The
memory does not survive the machine: it has no file, and vanishes with the supervisor and its last child.
"""

from hybridps.ps.server.kept.memory import KeptMemory
from hybridps.ps.server.kept.supervisor import supervise

__all__ = ["KeptMemory", "supervise"]
