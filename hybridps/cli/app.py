"""The commands and their options: they gather what was said, and hand it on."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from hybridps import __version__
from hybridps.cli.oracle_runs import oracle_app
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
    command: Annotated[
        list[str] | None, typer.Argument(metavar="COMMAND...", help="What each worker runs, e.g. python train.py")
    ] = None,
    workers: Annotated[int | None, typer.Option("-n", "-np", "--workers", help="Workers in all.")] = None,
    groups: Annotated[
        int | None, typer.Option("--groups", help="Groups; their sizes are as equal as possible.")
    ] = None,
    sizes: Annotated[str | None, typer.Option("--group-sizes", help="Workers of each group, e.g. 3,1.")] = None,
    servers: Annotated[
        int | None, typer.Option("-s", "--servers", help="Servers to start. Default: 1 for several groups, else 0.")
    ] = None,
    backend: Annotated[
        str | None, typer.Option("--backend", help="Whose servers: hybridps, or mxnet for MXNet's own.")
    ] = None,
    racks: Annotated[
        int | None, typer.Option("--racks", help="Racks: each has so many servers; above them is a parent.")
    ] = None,
    algorithm: Annotated[str | None, typer.Option("--algorithm", help="Name of the algorithm, e.g. elastic.")] = None,
    hosts: Annotated[str | None, typer.Option("-H", "--hosts", help="Hosts and their slots, e.g. h1:4,h2:4.")] = None,
    hostfile: Annotated[Path | None, typer.Option("--hostfile", help="File with lines like: h1 slots=4")] = None,
    folder: Annotated[str | None, typer.Option("--run", help="Run folder: events and the report go there.")] = None,
    alpha: Annotated[float | None, typer.Option("--alpha", help="Moving rate of Elastic SGD.")] = None,
    tau: Annotated[int | None, typer.Option("--tau", help="Steps between two exchanges of Elastic SGD.")] = None,
    pairs: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Any other setting, e.g. chunk_bytes=65536.")
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Let everybody on the network use the servers, without keys.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No settings, notes and summary.")] = False,
) -> None:
    """Start servers, and one mpirun for each group; the groups meet only on the servers."""
    from hybridps.cli.plan import Wish, read_settings
    from hybridps.cli.run import run

    options: dict[str, Any] = {
        "groups": groups,
        "group_sizes": sizes,
        "backend": backend,
        "racks": racks,
        "algorithm": algorithm,
        "run_folder": folder,
        "alpha": alpha,
        "tau": tau,
        "quiet": quiet or None,
    }
    settings = read_settings(options, pairs or [])
    wish = Wish(tuple(command or ()), settings, workers, servers, _hosts(hosts, hostfile), insecure)
    sys.exit(run(wish))


@app.command(name="serve")
def serve_command(
    bind: Annotated[
        str, typer.Option("--bind", help="Address to listen on; * is any free port.")
    ] = "tcp://127.0.0.1:*",
    insecure: Annotated[bool, typer.Option("--insecure", help="Listen on the network without keys.")] = False,
    keys: Annotated[
        str | None, typer.Option("--keys", help="Folder made by hybridps keys: only its tenants may connect.")
    ] = None,
    stop_after_groups: Annotated[
        int | None, typer.Option("--stop-after-groups", help="End when so many groups have said goodbye.")
    ] = None,
    lost_seconds: Annotated[
        float | None, typer.Option("--lost-seconds", help="Silence after which a group, or the parents, are lost.")
    ] = None,
    metrics_port: Annotated[
        int | None, typer.Option("--metrics-port", help="Tell metrics over HTTP on this port; 0 is any free one.")
    ] = None,
    metrics_bind: Annotated[
        str | None, typer.Option("--metrics-bind", help="Address for the metrics. Default: 127.0.0.1.")
    ] = None,
    groups: Annotated[
        int | None, typer.Option("--groups", min=1, help="Groups of the job, for MXNet's servers (HYBRIDPS_BACKEND).")
    ] = None,
    servers: Annotated[int, typer.Option("-s", "--servers", min=1, help="How many of MXNet's servers.")] = 1,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print the address only.")] = False,
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
    address: Annotated[str, typer.Argument(metavar="URL", help="Where the metrics are: a URL, or HOST:PORT.")],
    once: Annotated[bool, typer.Option("--once", help="Print the figures once, and end.")] = False,
) -> None:
    """Watch a server that was started with --metrics-port."""
    from hybridps.cli.top import watch

    watch(address, once)


@app.command(name="keys")
def keys_command(
    folder: Annotated[Path, typer.Argument(help="The servers' folder; made if it is not there.")],
    tenants: Annotated[list[str], typer.Argument(metavar="TENANT...", help="Who gets keys.")],
    memory: Annotated[str | None, typer.Option("--memory", help="What each may use of a server, e.g. 4G.")] = None,
    rate: Annotated[
        str | None, typer.Option("--rate", help="Bytes per second of each at a server, one way, e.g. 500M.")
    ] = None,
) -> None:
    """Make keys for tenants of servers that listen on a network."""
    from hybridps.cli.keys import make_keys

    make_keys(folder, tenants, memory, rate)


@app.command(name="doctor")
def doctor_command(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check this machine: what works, what does not, and what to do about it."""
    from hybridps.cli.doctor import doctor

    sys.exit(doctor(as_json))


@app.command(name="tune")
def tune_command(
    workers: Annotated[int, typer.Option("-n", "-np", "--workers", min=1, help="Ranks of the group.")] = 2,
    ranks_per_node: Annotated[
        int | None,
        typer.Option("--ranks-per-node", help="Take every so many ranks as a node. Default: those of a host."),
    ] = None,
    hosts: Annotated[str | None, typer.Option("-H", "--hosts", help="Hosts and their slots, e.g. h1:4,h2:4.")] = None,
    hostfile: Annotated[Path | None, typer.Option("--hostfile", help="File with lines like: h1 slots=4")] = None,
    file: Annotated[Path | None, typer.Option("--file", help="Where to keep the table. Default: in the cache.")] = None,
) -> None:
    """Measure which collective algorithm is fastest for which size here, and use it from now on."""
    from hybridps.cli.tune import tune

    sys.exit(tune(workers, ranks_per_node, _hosts(hosts, hostfile), file))


@app.command(name="report")
def report_command(folder: Annotated[str, typer.Argument(help="The run folder.")]) -> None:
    """Make the report of a run folder, and print its summary."""
    from hybridps.cli.summary import print_summary

    print_summary(folder)


def _hosts(hosts: str | None, hostfile: Path | None) -> tuple[Any, ...]:
    from hybridps.cli.hosts import parse_hostfile, parse_hosts

    if hosts is not None and hostfile is not None:
        raise ConfigError("--hosts and --hostfile both name the hosts: drop one of the two")
    if hostfile is not None:
        try:
            return parse_hostfile(hostfile.read_text())
        except OSError as error:
            raise ConfigError(f"the hostfile {str(hostfile)!r} cannot be read: {error.strerror}") from None
    return parse_hosts(hosts or "")
