"""Chooses how to serve, by the options, the settings and the MPI world of this process."""

from __future__ import annotations

from hybridps.addresses import problem_of_server
from hybridps.cli.serve.options import ServeOptions
from hybridps.config import Settings, world_size
from hybridps.errors import ConfigError


def serve(given: ServeOptions, settings: Settings) -> int:
    """Serve until SIGTERM, SIGINT, or the end of the last group; return the exit status. Raises HybridPSError."""
    in_world = world_size() > 1
    _check(given, settings, in_world)
    if in_world:
        from hybridps.job.servers import serve_in_world

        serve_in_world(settings, given.bind, given.insecure)
        return 0
    if settings.backend == "mxnet":
        from hybridps.cli.serve.mxnet import serve_mxnet

        serve_mxnet(
            given.bind, settings, groups=given.mxnet_groups, servers=given.mxnet_servers, insecure=given.insecure
        )
        return 0
    from hybridps.cli.serve.alone import serve_alone

    return serve_alone(given, settings)


def _check(given: ServeOptions, settings: Settings, in_world: bool) -> None:
    """Raise ConfigError for options that contradict each other or the settings."""
    if problem := problem_of_server(given.bind, binding=True):
        raise ConfigError(f"--bind {given.bind!r} cannot be used: {problem}")
    if settings.backend == "hybridps" and (given.mxnet_groups is not None or given.mxnet_servers != 1):
        raise ConfigError("--groups and --servers belong to HYBRIDPS_BACKEND=mxnet: set that, or omit them")
    if given.restarts:
        _check_can_restart(given.restarts, settings, in_world)
    if settings.snapshots is not None:
        check_can_snapshot(settings)
    if in_world and given.stop_after_groups is not None:
        raise ConfigError("--stop-after-groups: a server that is a rank of an MPI world ends with it; omit the option")
    if not in_world and settings.backend == "mxnet" and settings.metrics_port is not None:
        raise ConfigError("MXNet's servers expose no metrics: omit --metrics-port, or use the backend hybridps")


def _check_can_restart(restarts: int, settings: Settings, in_world: bool) -> None:
    """Raise ConfigError for a server that could not continue after its death."""
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
    """Raise ConfigError for servers that have no tables of their own to take snapshots of."""
    problem = None
    if settings.backend == "mxnet":
        problem = "MXNet's servers take no snapshots"
    elif settings.parents or settings.racks > 1:
        problem = "the servers of racks take no snapshots"
    if problem is not None:
        raise ConfigError(f"--snapshots {settings.snapshots} cannot be used: {problem}; omit the option")
