"""The environment that the groups of a launch share."""

from __future__ import annotations

import os
from collections.abc import Callable

from hybridps.cli.run.mpirun import rank_environment, root_environment, session_environment
from hybridps.cli.run.plan import Launch
from hybridps.cli.run.plan.hosts import is_here
from hybridps.cli.run.plan.places import SLURM
from hybridps.processes import without_rank_marks

_SHARED_MEMORY = "/dev/shm"
_ALLOCATIONS = {"SLURM_JOB_ID", "PBS_NODEFILE", "PBS_JOBID", "LSB_HOSTS", "LSB_DJOB_HOSTFILE", "JOB_ID"}
"""Variables of batch systems from which mpirun learns its hosts."""


def environment_of_groups(launch: Launch, folder: str, make_folder: Callable[[str], str]) -> dict[str, str]:
    """Return the variables of all mpiruns, without settings. `folder`: where mpirun keeps its files.

    `make_folder` makes a new folder in a given one, for the shared memory of the ranks.
    """
    hosts = [host for group in launch.groups for host in group.hosts]
    # mpirun may find other hosts by itself.
    all_here = all(is_here(host.name) for host in hosts) if hosts else _ALLOCATIONS.isdisjoint(os.environ)
    memory = make_folder(_SHARED_MEMORY) if os.access(_SHARED_MEMORY, os.W_OK) else None
    shared = {**without_rank_marks(os.environ), **launch.environment.workers}
    shared.pop("DMLC_ROLE", None)  # with a role of MXNet's own servers, `import mxnet` would never return
    if launch.launcher == SLURM:
        shared.setdefault("SLURM_OVERLAP", "1")  # each mpirun starts a step, and several of them may share a node
    workers = launch.workers_on_a_host
    cores = len(os.sched_getaffinity(0))
    shared |= rank_environment(shared, cores, workers, workers + len(launch.servers)) | root_environment()
    return shared | session_environment(shared, folder, memory, all_here)
