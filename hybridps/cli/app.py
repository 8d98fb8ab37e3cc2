"""The commands and their options. Each command imports what it needs when it runs."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from hybridps import __version__
from hybridps.cli import options
from hybridps.cli.oracle import oracle_app
from hybridps.config import PREFIX
from hybridps.errors import ConfigError, HybridPSError

MISUSED = 2

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
app.add_typer(oracle_app, name="oracle")


def main(argv: list[str] | None = None) -> NoReturn:
    """Run the command line, and exit. A HybridPSError is one line on standard error, and exit status 2."""
    try:
        app(args=argv, prog_name="hybridps")
    except HybridPSError as error:
        print(f"hybridps: error: {error}", file=sys.stderr)
        sys.exit(MISUSED)
    sys.exit(0)


@app.callback(invoke_without_command=True)
def top(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """MPI and a parameter server together in distributed training."""
    if version:
        print(f"hybridps {__version__}")
    elif context.invoked_subcommand is None:
        print(context.get_help())


@app.command(
    name="run",
    context_settings={"allow_interspersed_args": False, "ignore_unknown_options": False},
    options_metavar="[OPTIONS] --",
)
def run_command(
    command: options.CommandArgument = None,
    *,
    workers: options.WorkersOption = None,
    groups: options.GroupsOption = None,
    group_sizes: options.SizesOption = None,
    servers: options.ServersOption = None,
    backend: options.BackendOption = None,
    racks: options.RacksOption = None,
    algorithm: options.AlgorithmOption = None,
    hosts: options.HostsOption = None,
    hostfile: options.HostfileOption = None,
    run_folder: options.FolderOption = None,
    alpha: options.AlphaOption = None,
    tau: options.TauOption = None,
    pairs: options.PairsOption = None,
    insecure: options.InsecureOption = False,
    quiet: options.QuietOption = False,
) -> None:
    """Start the servers, and one mpirun for each group. Groups communicate only through the servers."""
    from hybridps.cli.run.launcher import run
    from hybridps.cli.run.plan import LaunchOptions, read_settings

    given: dict[str, Any] = {
        "groups": groups,
        "group_sizes": group_sizes,
        "backend": backend,
        "racks": racks,
        "algorithm": algorithm,
        "run_folder": run_folder,
        "alpha": alpha,
        "tau": tau,
        "quiet": quiet or None,
    }
    settings = read_settings(given, pairs or [])
    options = LaunchOptions(tuple(command or ()), settings, workers, servers, _hosts(hosts, hostfile), insecure)
    sys.exit(run(options))


@app.command(name="serve")
def serve_command(
    *,
    bind: options.BindOption = "tcp://127.0.0.1:*",
    insecure: options.OpenOption = False,
    keys: options.KeysOption = None,
    stop_after_groups: options.StopAfterGroupsOption = None,
    lost_seconds: options.LostSecondsOption = None,
    metrics_port: options.MetricsPortOption = None,
    metrics_bind: options.MetricsBindOption = None,
    groups: options.MxnetGroupsOption = None,
    servers: options.MxnetServersOption = 1,
    quiet: options.AddressOnlyOption = False,
) -> None:
    """Run a parameter server."""
    from hybridps.cli.serve import serve

    given = {
        "QUIET": "true" if quiet else None,
        "SERVER_KEYS": keys,
        "LOST_SECONDS": lost_seconds,
        "METRICS_PORT": metrics_port,
        "METRICS_BIND": metrics_bind,
    }
    os.environ.update({PREFIX + name: str(value) for name, value in given.items() if value is not None})
    serve(
        bind,
        insecure=insecure,
        stop_after_groups=stop_after_groups,
        groups=groups,
        servers=servers,
    )


@app.command(name="top")
def top_command(
    address: Annotated[str, typer.Argument(metavar="URL", help="Address of the metrics: a URL, or HOST:PORT.")],
    once: Annotated[bool, typer.Option("--once", help="Print the figures once, and exit.")] = False,
    tables: Annotated[bool, typer.Option("--tables", help="Also list the tables of each job.")] = False,
) -> None:
    """Watch the jobs of a server that was started with --metrics-port."""
    from hybridps.cli.top import watch

    watch(address, once=once, tables=tables)


@app.command(name="keys")
def keys_command(
    folder: Annotated[Path, typer.Argument(help="The servers' folder; created if it does not exist.")],
    tenants: Annotated[list[str], typer.Argument(metavar="TENANT...", help="Names of the tenants that get keys.")],
    memory: Annotated[
        str | None, typer.Option("--memory", help="Memory that each may use on a server, e.g. 4G.")
    ] = None,
    rate: Annotated[
        str | None,
        typer.Option("--rate", help="Bytes per second that each may send to a server, and receive from it, e.g. 500M."),
    ] = None,
) -> None:
    """Create keys for the tenants of servers that listen on a network."""
    from hybridps.cli.keys import make_keys

    make_keys(folder, tenants, memory, rate)


@app.command(name="doctor")
def doctor_command(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check this machine, and say how to fix what does not work."""
    from hybridps.cli.doctor import doctor

    sys.exit(doctor(as_json))


@app.command(name="tune")
def tune_command(
    workers: Annotated[int, typer.Option("-n", "-np", "--workers", min=1, help="Number of ranks in the group.")] = 2,
    ranks_per_node: Annotated[
        int | None,
        typer.Option(
            "--ranks-per-node", help="Treat this many consecutive ranks as a node. Default: the ranks of a host."
        ),
    ] = None,
    hosts: options.HostsOption = None,
    hostfile: options.HostfileOption = None,
    file: Annotated[
        Path | None, typer.Option("--file", help="File for the table. Default: a file in the cache folder.")
    ] = None,
) -> None:
    """Measure which collective algorithm is fastest on this machine for each size, and use it from now on."""
    from hybridps.cli.tune import tune

    sys.exit(tune(workers, ranks_per_node, _hosts(hosts, hostfile), file))


@app.command(name="report")
def report_command(folder: Annotated[str, typer.Argument(help="The run folder.")]) -> None:
    """Write the report of a run folder, and print its summary."""
    from hybridps.cli.summary import print_summary

    print_summary(folder)


def _hosts(hosts: str | None, hostfile: Path | None) -> tuple[Any, ...]:
    from hybridps.cli.run.hosts import parse_hostfile, parse_hosts

    if hosts is not None and hostfile is not None:
        raise ConfigError("--hosts and --hostfile both name the hosts: give only one of them")
    if hostfile is not None:
        try:
            return parse_hostfile(hostfile.read_text())
        except OSError as error:
            raise ConfigError(f"the hostfile {str(hostfile)!r} cannot be read: {error.strerror}") from None
    return parse_hosts(hosts or "")
