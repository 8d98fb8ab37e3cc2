"""Sessions, plans and groups of ranks. Opening a session starts MPI; importing this package does not.

A caller opens a `Session` and works with its `Group`. Tests use `ThreadGroup`, `SoloGroup` and `FaultyGroup`.
"""

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
