"""Snapshots of a server's tables in a folder, from which a job starts when the machine of a server was lost.

`SnapshotFolder` is the folder, and `Snapshots` takes them. The loop says which chunk is copied next, its worker thread
copies it between two of its rounds, and a thread of its own writes. So each chunk is as of the end of one of its
rounds, and two chunks may be some rounds apart.
"""

from hybridps.ps.server.snapshots.folder import SnapshotFolder, only_job
from hybridps.ps.server.snapshots.taking import Snapshots

__all__ = ["SnapshotFolder", "Snapshots", "only_job"]
