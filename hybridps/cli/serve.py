"""`hybridps serve`: a parameter server, alone or as a rank of an MPI world."""

from __future__ import annotations

import os
from collections.abc import Mapping

from hybridps.addresses import problem_of_server
from hybridps.config import Settings, started_by_mpi
from hybridps.errors import ConfigError

_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")


def serve(
    bind: str,
    settings: Settings,
    insecure: bool,
    stop_after_groups: int | None,
    groups: int | None,
    servers: int,
    *,
    told_ends: bool = False,
    restarts: int = 0,
) -> int:
    """Serve until SIGTERM, SIGINT, or the end of the last group; returns the exit status. Raises HybridPSError.

    `groups` and `servers` belong to the backend mxnet: MXNet's servers serve one job of that many groups. `told_ends`:
    the launcher writes a line to standard input when a group has ended. `restarts`: how often a server that dies is
    started again with its tables.
    """
    if problem := problem_of_server(bind, binding=True):
        raise ConfigError(f"--bind {bind!r} cannot be used: {problem}")
    if settings.backend == "hybridps" and (groups is not None or servers != 1):
        raise ConfigError("--groups and --servers belong to HYBRIDPS_BACKEND=mxnet: set that, or omit them")
    in_world = world_size(os.environ) > 1
    if restarts:
        _check_can_restart(restarts, settings, in_world)
    if settings.snapshots is not None:
        check_can_snapshot(settings)
    if in_world:
        if stop_after_groups is not None:
            raise ConfigError(
                "--stop-after-groups: a server that is a rank of an MPI world ends with it; omit the option"
            )
        from hybridps.job.servers import serve_in_world

        serve_in_world(settings, bind, insecure)
        return 0
    if settings.backend == "mxnet":
        if settings.metrics_port is not None:
            raise ConfigError("MXNet's servers expose no metrics: omit --metrics-port, or use the backend hybridps")
        from hybridps.cli.serve_mxnet import serve_mxnet

        serve_mxnet(bind, settings, groups=groups, servers=servers, insecure=insecure)
        return 0
    from hybridps.cli.serve_alone import serve_alone

    return serve_alone(
        bind,
        settings,
        insecure=insecure,
        stop_after_groups=stop_after_groups,
        told_ends=told_ends,
        restarts=restarts,
    )


def _check_can_restart(restarts: int, settings: Settings, in_world: bool) -> None:
    """Raise ConfigError for a server that could not go on where it died."""
    problem = None
    if in_world:
        problem = "a server that is a rank of an MPI world ends with it"
    elif settings.backend == "mxnet":
        problem = "MXNet's servers lose their tables when they die"
    elif settings.parents:
        problem = f"a server with parents ({','.join(settings.parents)}) loses its tables when it dies"
    if problem is not None:
        raise ConfigError(f"--restarts {restarts} cannot be used: {problem}; omit the option")


def check_can_snapshot(settings: Settings) -> None:
    """Raise ConfigError for settings of servers that have no tables of their own to take snapshots of."""
    problem = None
    if settings.backend == "mxnet":
        problem = "MXNet's servers take no snapshots"
    elif settings.parents or settings.racks > 1:
        problem = "the servers of racks take no snapshots"
    if problem is not None:
        raise ConfigError(f"--snapshots {settings.snapshots} cannot be used: {problem}; omit the option")


def world_size(environ: Mapping[str, str]) -> int:
    """Ranks of the MPI world that this process was started in; 1 if it was not started by MPI."""
    if not started_by_mpi(environ):
        return 1
    return max((int(environ[name]) for name in _SIZES if environ.get(name, "").isdecimal()), default=1)
