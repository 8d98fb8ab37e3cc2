"""Sessions, plans and groups of ranks. Importing it does not start MPI; opening a session does."""

from hybridps.mpi_groups.faulty import FaultyGroup
from hybridps.mpi_groups.group import Group
from hybridps.mpi_groups.plan import Place, Plan, make_plan
from hybridps.mpi_groups.session import Session, end_group, open_session
from hybridps.mpi_groups.solo import SoloGroup
from hybridps.mpi_groups.threads import ThreadGroup

__all__ = [
    "FaultyGroup",
    "Group",
    "Place",
    "Plan",
    "Session",
    "SoloGroup",
    "ThreadGroup",
    "end_group",
    "make_plan",
    "open_session",
]
