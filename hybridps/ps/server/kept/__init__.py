"""What a server keeps when its process dies: `KeptMemory`, and `supervise`, which starts the process again.

A supervisor creates the memory, and each life of the server opens it, reads from it how far the last one came, and goes
on. The machine may not die: the memory has no file, and is gone with the supervisor and its last child.
"""

from hybridps.ps.server.kept.memory import KeptMemory
from hybridps.ps.server.kept.pages import gather
from hybridps.ps.server.kept.supervisor import supervise

__all__ = ["KeptMemory", "gather", "supervise"]
