"""Snapshots of a server's tables in a folder, from which a job starts if the machine of a server was lost.

`SnapshotFolder` is the folder, and `Snapshots` takes snapshots. The loop says which chunk is copied next, the chunk's
worker thread copies it between two of its rounds, and a separate thread writes. So each chunk is complete as of the end
of one of its rounds, and two chunks may be some rounds apart.
"""

from hybridps.ps.server.snapshots.folder import SnapshotFolder, only_job
from hybridps.ps.server.snapshots.taking import Snapshots

__all__ = ["SnapshotFolder", "Snapshots", "only_job"]
