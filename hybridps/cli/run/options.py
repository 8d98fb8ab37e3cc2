"""The options of `hybridps run`. Some have a second name, under which MXNet's `tools/launch.py` knows them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

CommandArgument = Annotated[
    list[str] | None, typer.Argument(metavar="COMMAND...", help="What each worker runs, e.g. python train.py")
]
WorkersOption = Annotated[
    int | None, typer.Option("-n", "-np", "--workers", "--num-workers", help="Total number of workers.")
]
GroupsOption = Annotated[int | None, typer.Option(help="Number of groups; their sizes are as equal as possible.")]
GroupSizesOption = Annotated[str | None, typer.Option(help="Workers in each group, e.g. 3,1.")]
ServersOption = Annotated[
    int | None,
    typer.Option(
        "-s",
        "--servers",
        "--num-servers",
        help="Number of servers to start. Default: 1 for several groups, else 0.",
    ),
]
BackendOption = Annotated[
    str | None, typer.Option(help="Parameter servers to use: hybridps, or mxnet for MXNet's own.")
]
RacksOption = Annotated[
    int | None,
    typer.Option(help="Number of racks. Each gets servers of its own (--servers), below one parent server."),
]
AlgorithmOption = Annotated[str | None, typer.Option(help="Name of the algorithm, e.g. elastic.")]
LauncherOption = Annotated[
    str | None,
    typer.Option(
        metavar="WORD",
        help="How ranks are started: local, ssh, mpi (as mpirun does it by itself), or slurm (in an allocation).",
    ),
]
HostsOption = Annotated[
    str | None,
    typer.Option("-H", "--hosts", help="Hosts and their slots, e.g. h1:4,h2:4, or a file with them."),
]
HostfileOption = Annotated[Path | None, typer.Option(help="File with lines such as: h1 slots=4")]
ExportsOption = Annotated[
    list[str] | None,
    typer.Option(
        "-x", metavar="NAME[=VALUE]", help="Environment variable for all workers and servers, as here or with a value."
    ),
]
EnvOption = Annotated[
    list[str] | None,
    typer.Option("--env", metavar="NAME[:VALUE],...", help="The same for several variables, as launch.py has it."),
]
WorkerEnvOption = Annotated[
    list[str] | None, typer.Option("--env-worker", metavar="NAME:VALUE,...", help="The same, for workers alone.")
]
ServerEnvOption = Annotated[
    list[str] | None, typer.Option("--env-server", metavar="NAME:VALUE,...", help="The same, for servers alone.")
]
SyncOption = Annotated[str | None, typer.Option("--sync-dst-dir", hidden=True)]
RunOption = Annotated[str | None, typer.Option("--run", help="Run folder, for events and the report.")]
AlphaOption = Annotated[float | None, typer.Option(help="Moving rate of Elastic SGD.")]
TauOption = Annotated[int | None, typer.Option(help="Steps between two exchanges of Elastic SGD.")]
SettingsOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Any other setting, e.g. chunk_bytes=65536.")
]
InsecureOption = Annotated[
    bool, typer.Option("--insecure", help="Let anyone on the network use the servers, without keys.")
]
QuietOption = Annotated[bool | None, typer.Option("--quiet", help="Do not print settings, notes and the summary.")]
