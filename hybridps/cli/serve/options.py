"""The options of `hybridps serve`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from hybridps.cli.run import options


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """The options of `hybridps serve`, as given on the command line."""

    bind: Annotated[str, typer.Option(help="Address to listen on; * stands for any free port.")] = "tcp://127.0.0.1:*"
    insecure: Annotated[bool, typer.Option("--insecure", help="Listen on the network without keys.")] = False
    server_keys: Annotated[
        str | None,
        typer.Option("--keys", metavar="FOLDER", help="Folder created by hybridps keys. Only its tenants may connect."),
    ] = None
    stop_after_groups: Annotated[int | None, typer.Option(help="Exit once this many groups have left.")] = None
    lost_seconds: Annotated[
        float | None,
        typer.Option(help="Seconds without a heartbeat after which a group, or the parents, count as lost."),
    ] = None
    metrics_port: Annotated[
        int | None, typer.Option(help="Expose Prometheus metrics over HTTP on this port; 0 is any free port.")
    ] = None
    metrics_bind: Annotated[
        str | None, typer.Option(help="Address on which metrics are exposed. Default: 127.0.0.1.")
    ] = None
    mxnet_groups: Annotated[
        int | None,
        typer.Option(
            "--groups", min=1, help="Number of groups of the job, for MXNet's servers (HYBRIDPS_BACKEND=mxnet)."
        ),
    ] = None
    mxnet_servers: Annotated[int, typer.Option("-s", "--servers", min=1, help="Number of MXNet servers.")] = 1
    snapshots: options.SnapshotsOption = None
    snapshot_seconds: options.SnapshotSecondsOption = None
    restarts: Annotated[
        int, typer.Option(min=0, help="Restart the server with its tables if it dies, at most this many times.")
    ] = 0
    quiet: Annotated[bool | None, typer.Option("--quiet", help="Print only the address.")] = None
    told_ends: Annotated[bool, typer.Option("--told-ends", hidden=True)] = False
