"""The options of `hybridps compare` that `hybridps run` does not have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

AlgorithmsOption = Annotated[
    str,
    typer.Option(
        metavar="NAME[+TRIGGER][+WIRE],...",
        help="What to compare, e.g. sync,sync+float16,elastic,elastic+every:4,mxnet:dist_sync.",
    ),
]
SeedsOption = Annotated[
    int, typer.Option(min=1, help="Number of seeds; each contender is trained with seeds 0, 1, ...")
]
LinkOption = Annotated[
    str | None, typer.Option(metavar="RATE", help="Put each group behind a link of this rate, e.g. 100mbit (root).")
]
BudgetSecondsOption = Annotated[float | None, typer.Option(min=1, help="End each run after this many seconds.")]
AccuracyOption = Annotated[
    float | None,
    typer.Option(
        help="Accuracy, from 0 to 1, up to which time and bytes are counted. Default: the highest that all runs reach."
    ),
]
OutOption = Annotated[
    Path, typer.Option(help="Folder for the runs and the page. Runs that are already there are kept.")
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Print the commands, and run nothing.")]
