"""`hybridps oracle traffic`: forecasts the traffic of a run with other thresholds."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from hybridps.cli.oracle.options import Format, FormatOption, oracle_app, show
from hybridps.errors import ConfigError


@oracle_app.command(name="traffic")
def traffic_command(
    run: Annotated[Path, typer.Argument(help="The run folder.")],
    thresholds: Annotated[
        list[str],
        typer.Option("--threshold", help="Threshold of the trigger change, e.g. 0.05 or inf; may be repeated."),
    ],
    silence: Annotated[int | None, typer.Option(min=1, help="Steps after which a group exchanges in any case.")] = None,
    form: FormatOption = Format.table,
) -> None:
    """Forecast the traffic of --trigger change:THRESHOLD from the changes that a run has recorded."""
    from hybridps.oracle.hybrid.traffic import forecast, read_changes
    from hybridps.oracle.output.tables import traffic_table

    wanted = [_threshold(text) for text in thresholds]
    found = forecast(read_changes(run), wanted, silence)
    show(form, found, traffic_table(found))


def _threshold(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not value >= 0:
        raise ConfigError(f"--threshold {text} cannot be used: give a number of 0 or more, or inf")
    return None if math.isinf(value) else value
