"""`hybridps oracle replay | calibrate | compare`: measure a machine, and compare predictions with measurements."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from hybridps.cli.oracle.inputs import layers_of_trace
from hybridps.cli.oracle.options import Format, FormatOption, oracle_app, print_notes, show
from hybridps.errors import ConfigError, OracleError

CALIBRATION_FOLDER = "calibration"


@oracle_app.command(name="replay")
def replay_command(
    trace: Annotated[
        Path,
        typer.Argument(
            help="A run with --trace, a file of `hybridps trace`, or a CSV: layer,parameters,backward_us,allreduce_us."
        ),
    ],
    a_us: Annotated[
        float | None,
        typer.Option("--a-us", min=0, help="Start-up time of an allreduce, in microseconds. Default: fitted."),
    ] = None,
    b_us_per_byte: Annotated[
        float | None, typer.Option("--b-us-per-byte", min=0, help="Microseconds per byte. Default: fitted.")
    ] = None,
    chrome: Annotated[Path | None, typer.Option("--chrome", help="Write the schedules as a Chrome trace.")] = None,
    plot: Annotated[Path | None, typer.Option("--plot", help="Draw the schedules (PNG).")] = None,
    form: FormatOption = Format.json,
) -> None:
    """Replay a measured trace with other ways to send its gradients: naive, wait-free, one message, merged."""
    import json

    from hybridps.oracle.machines import Line
    from hybridps.oracle.output.tables import replay_table
    from hybridps.oracle.output.timeline import chrome_trace, plot_schedules
    from hybridps.oracle.ssgd.dag import place
    from hybridps.oracle.ssgd.trace import fit_link, iterations, replay

    if (a_us is None) != (b_us_per_byte is None):
        raise ConfigError("--a-us and --b-us-per-byte belong together: give both, or none to fit them to the trace")
    layers = layers_of_trace(trace)
    given = None if a_us is None or b_us_per_byte is None else Line(1e-6 * a_us, 1e-6 * b_us_per_byte)
    link = given or fit_link(layers)
    found = replay(layers, link)
    if trace.suffix != ".csv":
        print_notes(
            ("an iteration begins with its first gradient: forward, loading and waits of the program are left out",)
        )
    show(form, found, replay_table(found))
    schedules = {name: place(*way) for name, way in iterations(layers, link).items()}
    if chrome:
        chrome.write_text(json.dumps(chrome_trace(schedules)) + "\n")
    if plot:
        plot_schedules(schedules, plot)


@oracle_app.command(
    name="calibrate",
    context_settings={"allow_interspersed_args": False, "ignore_unknown_options": False},
    options_metavar="[OPTIONS] --",
)
def calibrate_command(
    command: Annotated[
        list[str], typer.Argument(metavar="COMMAND...", help="The training script, e.g. python train.py --data ...")
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder to write to.")] = Path(CALIBRATION_FOLDER),
    layouts: Annotated[
        str, typer.Option("--layouts", help="Workers x groups to measure the communication of; or none.")
    ] = "2x1,2x2,4x1,4x2",
    copies: Annotated[str, typer.Option("--copies", help="Numbers of copies of the script to run at once.")] = "1,2,4",
    batch_sizes: Annotated[str, typer.Option("--batch-sizes", help="Batch sizes of a worker to measure.")] = "4,12,20",
    batches: Annotated[int, typer.Option("--batches", min=2, help="Steps in an epoch; five epochs are run.")] = 8,
    models: Annotated[
        Path | None,
        typer.Option("--models", help="Python file whose make() returns the network. Default: Gluon's zoo."),
    ] = None,
    hosts: Annotated[str, typer.Option("-H", "--hosts", help="Hosts to run the layouts on, e.g. h1:2,h2:2.")] = "",
    base: Annotated[
        Path | None, typer.Option("--base", help="Calibration to reuse: only the communication is measured again.")
    ] = None,
) -> None:
    """Measure this machine's links, servers, memory and kernels, the network's layers, and the script's steps.

    The script must have the options of examples/imagenet/train.py.
    """
    import msgspec

    from hybridps.calibrate.calibrate import MeasurementPlan, calibrate, communications
    from hybridps.cli.run.plan.user_command import check
    from hybridps.oracle.machines.calibration import read_calibration, write_calibration
    from hybridps.oracle.output.tables import residuals_table

    check(command)
    pairs = tuple(_layout(part) for part in layouts.split(",") if part and part != "none")
    plan = MeasurementPlan(
        tuple(command),
        pairs,
        _counts("--copies", copies),
        _counts("--batch-sizes", batch_sizes),
        batches,
        models,
        hosts,
    )
    if base is None:
        found = calibrate(plan, _report)
    else:
        measured = communications(plan, _report)
        found = msgspec.structs.replace(read_calibration(base), hosts=hosts, communications=measured)
    write_calibration(found, out)
    show(Format.table, found, residuals_table(found))


@oracle_app.command(name="compare")
def compare_command(
    run: Annotated[Path, typer.Argument(help="The run folder.")],
    calibration: Annotated[Path, typer.Option("--calibration", help="Folder of the calibration.")] = Path(
        CALIBRATION_FOLDER
    ),
    form: FormatOption = Format.table,
) -> None:
    """Compare a run's measured times with the oracle's prediction, phase by phase."""
    from hybridps.calibrate.runs import describe, measure
    from hybridps.oracle.machines.calibration import read_calibration
    from hybridps.oracle.output.tables import comparison_table
    from hybridps.oracle.ssgd.live import compare, predict

    known = read_calibration(calibration)
    what, settings = describe(run)
    if settings.get("network") != known.layers.network.name:
        raise OracleError(
            f"{run} trained {settings.get('network')}, but {calibration} is for {known.layers.network.name}: "
            "give the --calibration of the network"
        )
    rows = compare(predict(known, what), measure(run, what))
    show(form, rows, comparison_table(rows, what))


def _report(text: str) -> None:
    print(f"hybridps: measuring {text}", file=sys.stderr, flush=True)


def _layout(text: str) -> tuple[int, int]:
    workers, _, groups = text.partition("x")
    if not (workers.isdigit() and groups.isdigit() and 1 <= int(groups) <= int(workers)):
        raise ConfigError(f"--layouts {text!r}: expected workers x groups, such as 4x2")
    return int(workers), int(groups)


def _counts(option: str, text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() and int(part) for part in parts):
        raise ConfigError(f"{option} {text!r}: expected numbers with commas between them, such as 1,2,4")
    return tuple(int(part) for part in parts)
