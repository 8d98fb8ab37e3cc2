"""The options that several commands of `hybridps oracle` share, and how they print."""

from __future__ import annotations

import sys
from enum import Enum
from typing import Annotated

import typer

oracle_app = typer.Typer(help="Predict training before it runs, and compare predictions with measured runs.")


class Format(str, Enum):
    """How answers are printed."""

    table = "table"
    json = "json"


NetworkOption = Annotated[
    str,
    typer.Option("--network", help="alexnet, vgg16, resnet50 ..., a network of Gluon's model zoo, or a file."),
]
MachineOption = Annotated[str, typer.Option("--machine", help="abci, or a file: JSON or .plat.")]
BatchOption = Annotated[int, typer.Option("--batch", help="Global batch size: samples per iteration over all PEs.")]
StrategyOption = Annotated[
    list[str],
    typer.Option(
        "--strategy",
        help="serial, data, spatial, layer, filter, channel, data+filter, data+spatial; "
        "sync, async, elastic, gossip, adaptive; all. May be repeated.",
    ),
]
PesOption = Annotated[list[int], typer.Option("--pes", help="Number of processing elements; may be repeated.")]
SettingsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="NAME=NUMBER", help="A parameter of the machine or the question, e.g. latency_plx_us=15."
    ),
]
ShapeOption = Annotated[
    str, typer.Option("--shape", help="Shape of a sample, for a symbol file or a model-zoo network.")
]
FormatOption = Annotated[Format, typer.Option("--format", help="Print a table, or JSON.")]


def print_notes(notes: tuple[str, ...]) -> None:
    """Print notes about the input on standard error."""
    for note in notes:
        print(f"hybridps: {note}", file=sys.stderr)


def show(form: Format, content: object, table: object) -> None:
    """Print an answer: its content as JSON, or its table. Outside a terminal, the table is 200 columns wide."""
    if form is Format.json:
        import msgspec

        print(msgspec.json.format(msgspec.json.encode(content), indent=1).decode())
        return
    from rich.console import Console

    console = Console()
    (console if console.is_terminal else Console(width=200)).print(table)
