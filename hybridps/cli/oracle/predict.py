"""`hybridps oracle predict | plan`: predict an epoch, and search for the best configuration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hybridps.cli.oracle import options
from hybridps.cli.oracle.options import Format, oracle_app, print_notes, show

if TYPE_CHECKING:
    from hybridps.oracle.paradl import Prediction


@oracle_app.command(name="predict")
def predict_command(
    *,
    network: options.NetworkOption,
    machine: options.MachineOption,
    strategy: options.StrategyOption,
    pes: options.PesOption,
    batch: options.BatchOption,
    mask: Annotated[Path | None, typer.Option("--mask", help="File (.lc) with the layers that are split.")] = None,
    settings: options.SettingsOption = None,
    variant: Annotated[
        str, typer.Option("--variant", help="Equations to use: paper, or code (those of the authors' program).")
    ] = "paper",
    shape: options.ShapeOption = "3x224x224",
    form: options.FormatOption = Format.table,
    plot: Annotated[Path | None, typer.Option("--plot", help="Draw times, scaling and memory (PNG).")] = None,
) -> None:
    """Predict an epoch: compute, communication and memory for each strategy and number of PEs."""
    from hybridps.cli.oracle.inputs import HYBRID_SETTINGS, network_of, settings_of, work_of
    from hybridps.oracle.hybrid import ALGORITHMS, predict_scheme, scheme_of
    from hybridps.oracle.output.plots import plot as draw
    from hybridps.oracle.output.tables import predictions_table
    from hybridps.oracle.paradl import predict, strategies_of

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
    predictions = [each.prediction for each in answers]
    print_notes((*work.network.notes, *_notes(predictions, "groups" in hybrid)))
    show(form, predictions, predictions_table(answers))
    if plot:
        draw(work, answers, plot)


@oracle_app.command(name="plan")
def plan_command(
    *,
    network: options.NetworkOption,
    machine: options.MachineOption,
    pes: options.PesOption,
    batch: options.BatchOption,
    strategy: Annotated[
        list[str] | None,
        typer.Option("--strategy", help="Strategies and algorithms to search. Default: all but async."),
    ] = None,
    most_groups: Annotated[int | None, typer.Option("--most-groups", min=1, help="Largest number of groups.")] = None,
    most_servers: Annotated[
        int | None, typer.Option("--most-servers", min=1, help="Largest number of servers.")
    ] = None,
    most_tau: Annotated[
        int | None, typer.Option("--most-tau", min=1, help="Largest number of steps between exchanges.")
    ] = None,
    least_efficiency: Annotated[
        float | None,
        typer.Option("--least-efficiency", min=0.0, max=1.0, help="Efficiency that doubling the PEs must keep."),
    ] = None,
    settings: options.SettingsOption = None,
    shape: options.ShapeOption = "3x224x224",
    form: options.FormatOption = Format.table,
) -> None:
    """Search for the fastest strategy, groups, servers, tau and chunk size for each number of PEs.

    The plan also names the bottleneck that limits doubling the PEs.
    """
    from hybridps.cli.oracle.inputs import network_of, settings_of, work_of
    from hybridps.oracle.hybrid import constraints_of, plan
    from hybridps.oracle.output.tables import plan_table

    work = work_of(network_of(network, shape), machine, None, settings_of(settings or []))
    constraints = constraints_of(
        strategy or (),
        most_groups=most_groups,
        most_servers=most_servers,
        most_tau=most_tau,
        least_efficiency=least_efficiency,
    )
    found = plan(work, batch, pes, constraints)
    print_notes(work.network.notes)
    show(form, found, plan_table(found))


def _notes(predictions: Sequence[Prediction], groups_are_given: bool) -> Iterator[str]:
    """Yield what a reader may miss in the answers."""
    between_groups = dict.fromkeys(
        each.strategy for each in predictions if each.strategy in ("async", "elastic", "gossip", "adaptive")
    )
    if between_groups and not groups_are_given:
        names = " and ".join(between_groups)
        yield f"{names}: this is one group, which communicates with no other; give the number with --set groups=N"
    if any("memory" in each for one in predictions for each in one.limits):
        yield (
            "the memory is an upper bound: each activation counts as an output and as an input, with its gradient, and "
            "frameworks reuse memory. To predict times in any case, raise the limit: --set memory_bytes=N"
        )
