"""What a job shows of itself while it runs: small status files, and which workers are slow.

Each worker, server and launcher writes a `StatusFile` to the live folder of its run (`folder`). `read_live` reads all
of them; `slow` compares workers. Anyone who can read the folder can watch the run, from any host.
"""

from hybridps.live.files import StatusFile
from hybridps.live.reading import Live, read_live
from hybridps.live.status import GroupStatus, LaunchStatus, Report, ServerStatus, WorkerStatus

__all__ = [
    "GroupStatus",
    "LaunchStatus",
    "Live",
    "Report",
    "ServerStatus",
    "StatusFile",
    "WorkerStatus",
    "read_live",
]
