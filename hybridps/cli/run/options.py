"""The options of `hybridps run`. Some have a second name, by which MXNet's `tools/launch.py` knows them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from hybridps.cli.run.plan.places import LAUNCHERS
from hybridps.cli.run.plan.ranks import BINDINGS, GROUP, PREFIXES
from hybridps.config import Settings, make_settings
from hybridps.errors import ConfigError


def _algorithms() -> list[str]:
    """Return the names of the algorithms, for shell completion."""
    from hybridps.algorithms.choose import KNOWN  # this loads the compiler

    return sorted(KNOWN)


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
JoinOption = Annotated[
    str | None,
    typer.Option(metavar="ADDRESS,...", help="Join the job that runs at these servers; the first one is enough."),
]
RestartsOption = Annotated[
    int, typer.Option(metavar="N", help="Restart groups that die, at most N times in total. Default: 0.")
]
ServerRestartsOption = Annotated[
    int | None,
    typer.Option(
        "--server-restarts",
        min=0,
        help="Restart a server that dies, with its tables, at most this many times. "
        "Default: 3; 0 with racks or MXNet's servers.",
    ),
]
SnapshotsOption = Annotated[
    str | None,
    typer.Option(metavar="FOLDER", help="Folder for snapshots of the servers' tables, from which a job can restart."),
]
SnapshotSecondsOption = Annotated[float | None, typer.Option(help="Seconds between two snapshots. Default: 60.")]
BackendOption = Annotated[
    str | None,
    typer.Option(
        help="Parameter servers to use: hybridps, or mxnet for MXNet's own.",
        autocompletion=lambda: ["hybridps", "mxnet"],
    ),
]
RacksOption = Annotated[
    int | None,
    typer.Option(help="Number of racks. Each gets servers of its own (--servers), below one parent server."),
]
AlgorithmOption = Annotated[
    str | None,
    typer.Option(
        help="Name of the algorithm: sync, async, stale, elastic, easgd, eamsgd, local, diloco, ...",
        autocompletion=_algorithms,
    ),
]
TriggerOption = Annotated[
    str | None,
    typer.Option(
        metavar="TRIGGER",
        help="When weights are averaged: always, every:TAU, change:THETA, eventgrad[:HORIZON], dynamic:DELTA, "
        "budget:RATE or adapt:THETA; a limit on the steps without an exchange may follow, as in "
        "change:0.05,silence=100. Default: as set by --tau.",
    ),
]
BudgetOption = Annotated[
    str | None,
    typer.Option(
        metavar="RATE", help="Rate at which each group may send, e.g. 10MB/s: short for --trigger budget:RATE."
    ),
]
LauncherOption = Annotated[
    str | None,
    typer.Option(
        metavar="WORD",
        help="How ranks are started: local, ssh, mpi (as mpirun does by default), or slurm (in an allocation).",
        autocompletion=lambda: list(LAUNCHERS),
    ),
]
HostsOption = Annotated[
    str | None,
    typer.Option("-H", "--hosts", help="Hosts and their slots, e.g. h1:4,h2:4, or a file that lists them."),
]
HostfileOption = Annotated[Path | None, typer.Option(help="File with lines such as: h1 slots=4")]
ExportsOption = Annotated[
    list[str] | None,
    typer.Option(
        "-x",
        metavar="NAME[=VALUE]",
        help="Environment variable for all workers and servers, with its value here or a new one.",
    ),
]
EnvOption = Annotated[
    list[str] | None,
    typer.Option("--env", metavar="NAME[:VALUE],...", help="Like -x for several variables, in launch.py's form."),
]
WorkerEnvOption = Annotated[
    list[str] | None, typer.Option("--env-worker", metavar="NAME:VALUE,...", help="Like --env, for workers only.")
]
ServerEnvOption = Annotated[
    list[str] | None, typer.Option("--env-server", metavar="NAME:VALUE,...", help="Like --env, for servers only.")
]
PrefixOption = Annotated[
    str,
    typer.Option(
        metavar="WORD",
        help="Prefix of each line of a worker: group, worker (its group and its number), or none.",
        autocompletion=lambda: list(PREFIXES),
    ),
]
LogOption = Annotated[
    str | None,
    typer.Option(
        "--log-dir",
        "--output-filename",
        metavar="FOLDER",
        help="Folder for the output, with a file for each worker, each server and the launcher.",
    ),
]
BindOption = Annotated[
    str | None,
    typer.Option(
        metavar="WORD,...",
        help="What each worker gets for itself on its host: cores, gpus, or cores,gpus. Default: nothing.",
        autocompletion=lambda: [*BINDINGS, ",".join(BINDINGS)],
    ),
]
MpiOption = Annotated[
    str | None, typer.Option("--mpi-args", metavar="TEXT", help="More options for mpirun, in one argument.")
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Print the commands, and run nothing.")]
SyncOption = Annotated[str | None, typer.Option("--sync-dst-dir", hidden=True)]
NoticeOption = Annotated[
    float | None,
    typer.Option(
        help="Seconds that groups get to leave the job after a SIGTERM. Default: they are stopped without notice."
    ),
]
RunOption = Annotated[
    str | None, typer.Option("--run", metavar="FOLDER", help="Run folder, for events and the report.")
]
TraceOption = Annotated[
    bool | None,
    typer.Option("--trace", help="Trace each step of all workers and servers into the run folder. See hybridps trace."),
]
TensorBoardOption = Annotated[
    str | None, typer.Option("--tensorboard", metavar="FOLDER", help="Folder for scalars to show in TensorBoard.")
]
WorkerMetricsOption = Annotated[
    int | None, typer.Option(help="Expose Prometheus metrics of all workers on this port; 0 is any free port.")
]
AlphaOption = Annotated[float | None, typer.Option(help="Moving rate of Elastic SGD.")]
TauOption = Annotated[
    int | None,
    typer.Option(
        help="Steps between two averages of weights. Default: 10; elastic and eamsgd choose it, between 1 and 10."
    ),
]
SettingsOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Any other setting, e.g. chunk_bytes=65536.")
]
InsecureOption = Annotated[
    bool, typer.Option("--insecure", help="Let anyone on the network use the servers, without keys.")
]
QuietOption = Annotated[bool | None, typer.Option("--quiet", help="Do not print settings, notes or the summary.")]


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options of `hybridps run`, as given on the command line."""

    command: CommandArgument = None
    workers: WorkersOption = None
    groups: GroupsOption = None
    group_sizes: GroupSizesOption = None
    server_count: ServersOption = None
    join: JoinOption = None
    restarts: RestartsOption = 0
    server_restarts: ServerRestartsOption = None
    snapshots: SnapshotsOption = None
    snapshot_seconds: SnapshotSecondsOption = None
    backend: BackendOption = None
    racks: RacksOption = None
    algorithm: AlgorithmOption = None
    trigger: TriggerOption = None
    budget: BudgetOption = None
    launcher: LauncherOption = None
    hosts: HostsOption = None
    hostfile: HostfileOption = None
    exports: ExportsOption = None
    env: EnvOption = None
    env_worker: WorkerEnvOption = None
    env_server: ServerEnvOption = None
    prefix: PrefixOption = GROUP
    log_dir: LogOption = None
    bind: BindOption = None
    mpi_args: MpiOption = None
    dry_run: DryRunOption = False
    sync_dst_dir: SyncOption = None
    notice_seconds: NoticeOption = None
    run_folder: RunOption = None
    trace: TraceOption = None
    tensorboard: TensorBoardOption = None
    worker_metrics_port: WorkerMetricsOption = None
    alpha: AlphaOption = None
    tau: TauOption = None
    pairs: SettingsOption = None
    insecure: InsecureOption = False
    quiet: QuietOption = None


def addresses_of(join: str | None, servers: int | None, settings: Settings) -> tuple[str, ...]:
    """Return the servers of `--join`. Raises ConfigError for options that have no meaning with it."""
    if join is None:
        return ()
    addresses = make_settings({"servers": join}).servers
    problem = None
    if not addresses:
        problem = "give the address of its first server, as in tcp://127.0.0.1:5555"
    elif servers or settings.servers:
        problem = "it uses the servers that run: leave --servers and HYBRIDPS_SERVERS out"
    elif settings.racks > 1 or settings.parents or settings.snapshots is not None or settings.backend != "hybridps":
        problem = "racks, parents, snapshots and the backend are those of its servers: leave them out"
    if problem is not None:
        raise ConfigError(f"--join {join} cannot be used: {problem}")
    return addresses


def trigger_of(trigger: str | None, budget: str | None) -> str | None:
    """Return the trigger that the two options ask for. Raises ConfigError if both are given."""
    if budget is None:
        return trigger
    if trigger is not None:
        raise ConfigError(
            f"--trigger {trigger} and --budget {budget} both say when weights are averaged: give only one of them"
        )
    return f"budget:{budget}"
