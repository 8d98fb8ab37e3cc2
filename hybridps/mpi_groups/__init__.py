"""Sessions, plans and groups of ranks. Opening a session starts MPI; importing this package does not.

A caller opens a `Session` and works with its `Group`. Tests use `ThreadGroup` and `SoloGroup`.
"""

from hybridps.mpi_groups.group import Group, allgather
from hybridps.mpi_groups.headcount import Headcount
from hybridps.mpi_groups.plan import Place, Plan, make_plan
from hybridps.mpi_groups.servers_view import ServersView
from hybridps.mpi_groups.session import Session, end_group, open_session
from hybridps.mpi_groups.threads import SoloGroup, ThreadGroup

__all__ = [
    "Group",
    "Headcount",
    "Place",
    "Plan",
    "ServersView",
    "Session",
    "SoloGroup",
    "ThreadGroup",
    "end_group",
    "allgather",
    "make_plan",
    "open_session",
]
