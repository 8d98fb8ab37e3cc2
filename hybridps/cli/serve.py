"""`hybridps serve`: a parameter server, alone or as a rank of an MPI world."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping

from hybridps.addresses import problem_of_bind
from hybridps.config import Settings, load_settings, started_by_mpi
from hybridps.errors import ConfigError
from hybridps.memory import keep_freed_memory

_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")


def serve(
    bind: str,
    *,
    insecure: bool,
    stop_after_groups: int | None,
    groups: int | None = None,
    servers: int = 1,
) -> None:
    """Serve until SIGTERM, SIGINT, or the end of the last group. Raises HybridPSError.

    `groups` and `servers` belong to the backend mxnet: MXNet's servers serve one job of that many groups.
    """
    settings = load_settings()
    if problem := problem_of_bind(bind):
        raise ConfigError(f"--bind {bind!r} cannot be used: {problem}")
    if settings.backend == "hybridps" and (groups is not None or servers != 1):
        raise ConfigError("--groups and --servers belong to HYBRIDPS_BACKEND=mxnet: set that, or omit them")
    if world_size(os.environ) > 1:
        if stop_after_groups is not None:
            raise ConfigError(
                "--stop-after-groups: a server that is a rank of an MPI world ends with it; omit the option"
            )
        from hybridps.embedded import serve_in_world

        serve_in_world(settings, bind, insecure)
        return
    if settings.backend == "mxnet":
        if settings.metrics_port is not None:
            raise ConfigError("MXNet's servers expose no metrics: omit --metrics-port, or use the backend hybridps")
        from hybridps.cli.serve_mxnet import serve_mxnet

        serve_mxnet(bind, settings, groups=groups, servers=servers, insecure=insecure)
        return
    _serve_alone(bind, settings, insecure, stop_after_groups)


def world_size(environ: Mapping[str, str]) -> int:
    """Ranks of the MPI world that this process was started in; 1 if it was not started by MPI."""
    if not started_by_mpi(environ):
        return 1
    return max((int(environ[name]) for name in _SIZES if environ.get(name, "").isdecimal()), default=1)


def _serve_alone(bind: str, settings: Settings, insecure: bool, stop_after_groups: int | None) -> None:
    from hybridps.ps.server import Server
    from hybridps.ps.server.metrics import serve_metrics

    keep_freed_memory()
    server = Server.of(settings, bind, insecure=insecure, stop_after_groups=stop_after_groups)
    _on_end_signals(server.stop)
    with server:
        metrics = serve_metrics(server.observe, settings)
        print("\n".join((f"hybridps: serving at {server.address}", *metrics)), flush=True)
        server.run()


def _on_end_signals(stop: Callable[[], None]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: stop())
