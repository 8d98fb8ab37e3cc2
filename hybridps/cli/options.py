"""The options of `hybridps run` and `hybridps serve`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

CommandArgument = Annotated[
    list[str] | None, typer.Argument(metavar="COMMAND...", help="What each worker runs, e.g. python train.py")
]
WorkersOption = Annotated[int | None, typer.Option("-n", "-np", "--workers", help="Total number of workers.")]
GroupsOption = Annotated[
    int | None, typer.Option("--groups", help="Number of groups; their sizes are as equal as possible.")
]
SizesOption = Annotated[str | None, typer.Option("--group-sizes", help="Workers in each group, e.g. 3,1.")]
ServersOption = Annotated[
    int | None,
    typer.Option("-s", "--servers", help="Number of servers to start. Default: 1 for several groups, else 0."),
]
BackendOption = Annotated[
    str | None, typer.Option("--backend", help="Parameter servers to use: hybridps, or mxnet for MXNet's own.")
]
RacksOption = Annotated[
    int | None,
    typer.Option("--racks", help="Number of racks. Each gets servers of its own (--servers), below one parent server."),
]
AlgorithmOption = Annotated[str | None, typer.Option("--algorithm", help="Name of the algorithm, e.g. elastic.")]
HostsOption = Annotated[str | None, typer.Option("-H", "--hosts", help="Hosts and their slots, e.g. h1:4,h2:4.")]
HostfileOption = Annotated[Path | None, typer.Option("--hostfile", help="File with lines such as: h1 slots=4")]
FolderOption = Annotated[str | None, typer.Option("--run", help="Run folder, for events and the report.")]
AlphaOption = Annotated[float | None, typer.Option("--alpha", help="Moving rate of Elastic SGD.")]
TauOption = Annotated[int | None, typer.Option("--tau", help="Steps between two exchanges of Elastic SGD.")]
PairsOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Any other setting, e.g. chunk_bytes=65536.")
]
InsecureOption = Annotated[
    bool, typer.Option("--insecure", help="Let anyone on the network use the servers, without keys.")
]
QuietOption = Annotated[bool, typer.Option("--quiet", help="Do not print settings, notes and the summary.")]

BindOption = Annotated[str, typer.Option("--bind", help="Address to listen on; * stands for any free port.")]
OpenOption = Annotated[bool, typer.Option("--insecure", help="Listen on the network without keys.")]
KeysOption = Annotated[
    str | None,
    typer.Option("--keys", help="Folder made by hybridps keys: only the tenants listed there may connect."),
]
StopAfterGroupsOption = Annotated[
    int | None, typer.Option("--stop-after-groups", help="Exit once this many groups have left.")
]
LostSecondsOption = Annotated[
    float | None,
    typer.Option("--lost-seconds", help="Seconds without a heartbeat after which a group, or the parents, are lost."),
]
MetricsPortOption = Annotated[
    int | None,
    typer.Option("--metrics-port", help="Expose Prometheus metrics over HTTP on this port; 0 is any free port."),
]
MetricsBindOption = Annotated[
    str | None, typer.Option("--metrics-bind", help="Address on which metrics are exposed. Default: 127.0.0.1.")
]
MxnetGroupsOption = Annotated[
    int | None,
    typer.Option("--groups", min=1, help="Groups of the job, for MXNet's servers (HYBRIDPS_BACKEND=mxnet)."),
]
MxnetServersOption = Annotated[int, typer.Option("-s", "--servers", min=1, help="Number of MXNet servers.")]
AddressOnlyOption = Annotated[bool, typer.Option("--quiet", help="Print only the address.")]
