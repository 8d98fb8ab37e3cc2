"""`hybridps oracle`: its commands and their options."""

from __future__ import annotations

import sys
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

oracle_app = typer.Typer(help="Predict training before it runs, and check the prediction against runs.")


class Format(str, Enum):
    """How answers are printed."""

    table = "table"
    json = "json"


NetworkOption = Annotated[
    str, typer.Option("--network", help="alexnet, vgg16, resnet50 ..., a name of Gluon's model zoo, or a file.")
]
MachineOption = Annotated[str, typer.Option("--machine", help="abci, or a file: JSON or .plat.")]
BatchOption = Annotated[int, typer.Option("--batch", help="Global batch: samples of one iteration of all PEs.")]
PesOption = Annotated[list[int], typer.Option("--pes", help="Processing elements; may be given several times.")]
SettingsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="NAME=NUMBER", help="A number of the machine or the question, e.g. latency_plx_us=15."
    ),
]
ShapeOption = Annotated[str, typer.Option("--shape", help="Shape of a sample, for a symbol or the model zoo.")]
FormatOption = Annotated[Format, typer.Option("--format", help="Table for people, or JSON.")]


@oracle_app.command(name="predict")
def predict_command(
    network: NetworkOption,
    machine: MachineOption,
    strategy: Annotated[
        list[str],
        typer.Option(
            "--strategy",
            help="serial, data, spatial, layer, filter, channel, data+filter, data+spatial; "
            "sync, async, elastic, gossip, adaptive; all. May be given several times.",
        ),
    ],
    pes: PesOption,
    batch: BatchOption,
    mask: Annotated[Path | None, typer.Option("--mask", help="Which layers are split: a .lc file.")] = None,
    settings: SettingsOption = None,
    variant: Annotated[str, typer.Option("--variant", help="paper: its equations; code: the program's.")] = "paper",
    shape: ShapeOption = "3x224x224",
    form: FormatOption = Format.table,
    plot: Annotated[Path | None, typer.Option("--plot", help="Draw times, scaling and memory (PNG).")] = None,
) -> None:
    """Predict an epoch: compute, communication and memory for each strategy and number of PEs."""
    from hybridps.cli.oracle_inputs import HYBRID_SETTINGS, network_of, settings_of, work_of
    from hybridps.oracle.hybrid import ALGORITHMS, predict_scheme, scheme_of
    from hybridps.oracle.paradl import predict, strategies_of
    from hybridps.oracle.tables import predictions_json, predictions_table

    numbers = settings_of(settings or [])
    work = work_of(network_of(network, shape), machine, mask, numbers)
    hybrid = {name: value for name, value in numbers.items() if name in HYBRID_SETTINGS}
    segments = int(numbers["segments"]) if "segments" in numbers else None
    answers = []
    for name in strategies_of(strategy, variant):
        for count in pes:
            if name in ALGORITHMS:
                answers.append(predict_scheme(work, scheme_of(name, hybrid), count, batch))
            else:
                answers.append(predict(work, name, count, batch, variant=variant, segments=segments))
    _note(work.network.notes)
    if form is Format.json:
        print(predictions_json(answers))
    else:
        _show(predictions_table(answers))
    if plot:
        from hybridps.oracle.plots import plot as draw

        draw(work, answers, plot)


@oracle_app.command(name="plan")
def plan_command(
    network: NetworkOption,
    machine: MachineOption,
    pes: PesOption,
    batch: BatchOption,
    strategy: Annotated[
        list[str] | None,
        typer.Option("--strategy", help="Only these strategies and algorithms; default all but async."),
    ] = None,
    most_groups: Annotated[int | None, typer.Option("--most-groups", min=1, help="No more groups.")] = None,
    most_servers: Annotated[int | None, typer.Option("--most-servers", min=1, help="No more servers.")] = None,
    most_tau: Annotated[int | None, typer.Option("--most-tau", min=1, help="No more steps between exchanges.")] = None,
    least_efficiency: Annotated[
        float | None, typer.Option("--least-efficiency", min=0.0, max=1.0, help="What doubling the PEs must keep.")
    ] = None,
    settings: SettingsOption = None,
    shape: ShapeOption = "3x224x224",
    form: FormatOption = Format.table,
) -> None:
    """Search the best strategy, groups, servers, tau and chunk for each number of PEs, and what stops doubling them."""
    from hybridps.cli.oracle_inputs import network_of, settings_of, work_of
    from hybridps.oracle.plan import constraints_of, plan
    from hybridps.oracle.tables import plan_json, plan_table

    work = work_of(network_of(network, shape), machine, None, settings_of(settings or []))
    constraints = constraints_of(
        strategy or (),
        most_groups=most_groups,
        most_servers=most_servers,
        most_tau=most_tau,
        least_efficiency=least_efficiency,
    )
    found = plan(work, batch, pes, constraints)
    _note(work.network.notes)
    if form is Format.json:
        print(plan_json(found))
    else:
        _show(plan_table(found))


def _note(notes: tuple[str, ...]) -> None:
    for note in notes:
        print(f"hybridps: {note}", file=sys.stderr)


def _show(table: object) -> None:
    """Print a table; where the output is no terminal, as wide as it needs."""
    from rich.console import Console

    console = Console()
    (console if console.is_terminal else Console(width=200)).print(table)
