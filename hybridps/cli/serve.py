"""`hybridps serve`: a parameter server, alone or as a rank of an MPI world."""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

from hybridps.addresses import problem_of_server
from hybridps.config import Settings, started_by_mpi
from hybridps.errors import ConfigError
from hybridps.memory import keep_freed_memory
from hybridps.processes import RETURNS, SAYS

if TYPE_CHECKING:
    from hybridps.ps.server import Server

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
) -> None:
    """Serve until SIGTERM, SIGINT, or the end of the last group. Raises HybridPSError.

    `groups` and `servers` belong to the backend mxnet: MXNet's servers serve one job of that many groups. `told_ends`:
    the launcher writes a line to standard input when a group has ended.
    """
    if problem := problem_of_server(bind, binding=True):
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
    from hybridps.ps.server import Server
    from hybridps.ps.server.metrics import serve_metrics

    keep_freed_memory()
    server = Server.of(settings, bind, insecure=insecure, stop_after_groups=stop_after_groups)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: server.stop())
    with server:
        metrics = serve_metrics(server.observe, settings)
        print("\n".join((f"{SAYS}{server.address}", *metrics)), flush=True)
        if told_ends:
            threading.Thread(target=_hear_ends, args=(server,), name="hybridps-ends", daemon=True).start()
        gc.freeze()  # what is there now stays until the end, and collections would stop the loop to look at it
        server.run()


def _hear_ends(server: Server) -> None:
    """Read lines of a job, as the server calls it, a group, and RETURNS if that is started again. Only the launcher can
    write to this pipe."""
    # Not by sys.stdin: a thread that waits in it when the interpreter ends aborts the process.
    with open(0, "rb", buffering=0, closefd=False) as told:
        for line in told:
            job, group, *more = line.decode().split()
            server.end_group(job, int(group), returns=more == [RETURNS])


def world_size(environ: Mapping[str, str]) -> int:
    """Ranks of the MPI world that this process was started in; 1 if it was not started by MPI."""
    if not started_by_mpi(environ):
        return 1
    return max((int(environ[name]) for name in _SIZES if environ.get(name, "").isdecimal()), default=1)
