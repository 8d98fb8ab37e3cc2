"""The commands and their options. Each command imports what it needs when it runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, NoReturn

import msgspec
import typer

from hybridps import __version__
from hybridps.cli.compare import options as compare_options
from hybridps.cli.oracle import oracle_app
from hybridps.cli.records import takes
from hybridps.cli.run import options
from hybridps.cli.serve.options import ServeOptions
from hybridps.config import PREFIX, Settings, load_settings, make_settings
from hybridps.errors import MISUSED, ConfigError, HybridPSError

app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)
app.add_typer(oracle_app, name="oracle")


def main(argv: list[str] | None = None) -> NoReturn:
    """Run the command line, and exit. A HybridPSError becomes one line on standard error, and exit status 2."""
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
    """Distributed training with MPI and a parameter server."""
    if version:
        print(f"hybridps {__version__}")
    elif context.invoked_subcommand is None:
        print(context.get_help())


@app.command(
    name="run",
    context_settings={"allow_interspersed_args": False, "ignore_unknown_options": False},
    options_metavar="[OPTIONS] --",
)
@takes(options.RunOptions)
def run_command(given: options.RunOptions) -> None:
    """Start the servers, and one mpirun for each group. Groups exchange weights through the servers, or by gossip."""
    from hybridps.cli.run.launcher import run
    from hybridps.cli.run.mpirun import find_mpirun
    from hybridps.cli.run.plan import make_launch
    from hybridps.cli.run.plan.environment import read_environment
    from hybridps.cli.run.plan.places import check_sync, find_hosts
    from hybridps.cli.run.plan.ranks import read_rank_options
    from hybridps.cli.run.said import Why, commands

    check_sync(given.sync_dst_dir)
    asked = asdict(given) | {"trigger": options.trigger_of(given.trigger, given.budget)}
    settings = read_settings(asked, given.pairs or [])
    log_folder = Path(given.log_dir) if given.log_dir is not None else None
    launch = make_launch(
        given.command or (),
        settings,
        workers=given.workers,
        servers=given.server_count,
        restarts=given.restarts,
        server_restarts=given.server_restarts,
        hosts=find_hosts(given.launcher, given.hosts, given.hostfile),
        insecure=given.insecure,
        environment=read_environment(os.environ, given.exports, given.env, given.env_worker, given.env_server),
        launcher=given.launcher,
        join=options.addresses_of(given.join, given.server_count, settings),
        ranks=read_rank_options(given.prefix, log_folder, given.mpi_args, given.bind),
    )
    status = None
    try:
        if given.dry_run:
            print("\n".join(commands(launch, find_mpirun())))
        else:
            status = run(launch, Why(given.workers, given.server_count, _where(given)))
    finally:
        if status is None and launch.settings.ticket is not None:  # no group comes to the job that it was to join
            from hybridps.cli.run.joining import give_up

            give_up(launch)
    sys.exit(status)


def _where(given: options.RunOptions) -> str | None:
    """Return the option that named the hosts, for the launcher's output; None if there was none."""
    if given.hosts or given.hostfile:
        return "-H" if given.hosts else "--hostfile"
    return "the allocation" if given.launcher == "slurm" else None


@app.command(
    name="compare",
    context_settings={"allow_interspersed_args": False, "ignore_unknown_options": False},
    options_metavar="[OPTIONS] --",
)
def compare_command(
    command: options.CommandArgument = None,
    *,
    algorithms: compare_options.AlgorithmsOption,
    seeds: compare_options.SeedsOption = 1,
    workers: options.WorkersOption = None,
    groups: options.GroupsOption = None,
    server_count: options.ServersOption = None,
    link: compare_options.LinkOption = None,
    budget_seconds: compare_options.BudgetSecondsOption = None,
    to_accuracy: compare_options.AccuracyOption = None,
    out: compare_options.OutOption = Path("runs/compare"),
    pairs: options.SettingsOption = None,
    exports: options.ExportsOption = None,
    dry_run: compare_options.DryRunOption = False,
) -> None:
    """Train a script with several algorithms in turn, and write one page that compares the results."""
    from hybridps.cli.compare.compare import compare
    from hybridps.cli.compare.plan import Comparison

    comparison = Comparison(
        contenders=(algorithms,),
        seeds=seeds,
        workers=next(count for count in (workers, groups, 1) if count is not None),
        groups=1 if groups is None else groups,
        servers=server_count,
        link=link,
        budget_seconds=budget_seconds,
        to_accuracy=to_accuracy,
        settings=tuple(pairs or ()),
        exports=tuple(exports or ()),
        command=tuple(command or ()),
    )
    sys.exit(compare(comparison, out.absolute(), dry_run=dry_run))


@app.command(name="serve")
@takes(ServeOptions)
def serve_command(given: ServeOptions) -> None:
    """Run a parameter server."""
    from hybridps.cli.serve.serve import serve

    sys.exit(serve(given, read_settings(asdict(given))))


@app.command(name="top")
def top_command(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="[RUN]",
            help="Run folder, or URL or HOST:PORT of a server's metrics. Default: the newest run on this host.",
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Print the figures once, and exit.")] = False,
    tables: Annotated[
        bool, typer.Option("--tables", help="With a server's metrics: also list the tables of each job.")
    ] = False,
) -> None:
    """Watch a run: its workers, groups and servers; or the jobs of a server that exposes metrics."""
    from hybridps.cli.top.watch import watch

    watch(run, once=once, tables=tables)


@app.command(name="keys")
def keys_command(
    folder: Annotated[Path, typer.Argument(help="The servers' folder; created if it does not exist.")],
    tenants: Annotated[list[str], typer.Argument(metavar="TENANT...", help="Names of the tenants to create keys for.")],
    memory: Annotated[str | None, typer.Option(help="Memory that each tenant may use on a server, e.g. 4G.")] = None,
    rate: Annotated[
        str | None,
        typer.Option(help="Bytes per second that each tenant may send to a server, and receive from it, e.g. 500M."),
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


@app.command(name="settings")
def settings_command(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[WORD...]", help="Only settings with these words in name or effect.")
    ] = None,
) -> None:
    """List the settings: their variables, values, defaults and effects."""
    from hybridps.cli.settings import print_settings

    print_settings(words or [])


@app.command(name="tune")
def tune_command(
    workers: Annotated[int, typer.Option("-n", "-np", "--workers", min=1, help="Number of ranks in the group.")] = 2,
    ranks_per_node: Annotated[
        int | None, typer.Option(help="Treat this many consecutive ranks as a node. Default: the ranks of a host.")
    ] = None,
    hosts: options.HostsOption = None,
    hostfile: options.HostfileOption = None,
    file: Annotated[
        Path | None, typer.Option(help="File to write the table to. Default: a file in the cache folder.")
    ] = None,
) -> None:
    """Measure which collective algorithm is fastest on this machine for each size, and use it from now on."""
    from hybridps.cli.run.plan.places import read_hosts
    from hybridps.cli.tune import tune

    sys.exit(tune(workers, ranks_per_node, read_hosts(hosts, hostfile), file))


@app.command(name="report")
def report_command(
    folders: Annotated[list[str], typer.Argument(metavar="RUN...", help="The run folders.")],
    page: Annotated[
        Path,
        typer.Option(
            "--page", help="File for the page about several runs. The page of a single run goes to its folder."
        ),
    ] = Path("report.html"),
) -> None:
    """Write the report of a run folder: summary.json, pictures and report.html; or one page of several runs."""
    from hybridps.cli.summary import print_comparison, print_summary

    if len(folders) > 1:
        print_comparison(folders, page)
    else:
        print_summary(folders[0])


@app.command(name="trace")
def trace_command(
    folder: Annotated[str, typer.Argument(metavar="RUN", help="The folder of a run that was started with --trace.")],
    out: Annotated[Path | None, typer.Option("--out", help="File to write. Default: RUN/trace.json.")] = None,
) -> None:
    """Write one Chrome trace of all workers and servers of a run, on one clock: open it at https://ui.perfetto.dev."""
    from hybridps.cli.summary import write_trace

    write_trace(Path(folder), out)


def read_settings(options: Mapping[str, Any], pairs: Iterable[str] = ()) -> Settings:
    """Return the settings of the environment, overridden by the options of the same name, then by `NAME=VALUE` pairs.

    Options that are None are ignored. Folders become absolute. Raises ConfigError.
    """
    values = msgspec.structs.asdict(load_settings())
    values |= {field: value for field, value in options.items() if field in values and value is not None}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise ConfigError(f"--set {pair!r} has no value: write --set NAME=VALUE, e.g. --set tau=5")
        values[name.strip().removeprefix(PREFIX).lower()] = value
    for folder in ("run_folder", "snapshots", "tensorboard"):
        if values.get(folder) == "":  # it would be the current folder
            raise ConfigError(f"{PREFIX}{folder.upper()}='' cannot be used: give the path of a folder")
        if values.get(folder):
            values[folder] = os.path.abspath(values[folder])
    return make_settings(values)
