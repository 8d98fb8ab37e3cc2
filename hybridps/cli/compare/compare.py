"""`hybridps compare`, from the command line to the page."""

from __future__ import annotations

import json
import os
import platform
import shlex
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from hybridps import __version__
from hybridps.cli.compare.checks import check, check_host, context_of
from hybridps.cli.compare.contenders import parse_contenders
from hybridps.cli.compare.outcomes import Outcome, Row, outcome_of, stated_accuracy, table
from hybridps.cli.compare.page import lines_of, make_page
from hybridps.cli.compare.plan import Comparison, fingerprint, trial_command, trials_of
from hybridps.cli.compare.trials import ENDED, FAILED, kept_result, run_trial
from hybridps.errors import FAILED as FAILED_STATUS
from hybridps.links import Links

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

PAGE, JSON = "compare.html", "compare.json"

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def compare(comparison: Comparison, folder: Path, *, dry_run: bool = False) -> int:
    """Run all trials that the folder does not have yet, and write the page. Return the exit status.

    Raises HybridPSError, before anything runs, for a comparison that is not possible. A trial that fails does not end
    the others; the page lists it, and the status is 1. After a signal, the page has the trials that ended before it.
    """
    contenders = parse_contenders(",".join(comparison.contenders))
    comparison = msgspec.structs.replace(comparison, contenders=tuple(contender.name for contender in contenders))
    check(comparison, contenders)
    trials, context = trials_of(comparison, contenders, folder), context_of(comparison)
    marks = {trial: fingerprint(comparison, trial, context) for trial in trials}
    kept = {trial: kept_result(trial, marks[trial]) for trial in trials}
    if dry_run:
        links = Links("hybridps-0", comparison.groups, comparison.link) if comparison.link else None
        for trial in trials:
            have = "  # kept" if kept[trial] else ""
            print(f"{shlex.join(trial_command(comparison, trial, links))}{have}")
        return 0
    check_host(comparison)
    outcomes: list[Outcome] = []
    signals: list[int] = []
    before = {number: signal.signal(number, lambda number, frame: signals.append(number)) for number in _SIGNALS}
    try:
        for place, trial in enumerate(trials, 1):
            result = kept[trial]
            if result is None and not signals:
                _say(f"{place} of {len(trials)}: {trial.title}; its output is in {trial.folder}")
                result = run_trial(comparison, trial, marks[trial], lambda: bool(signals))
            if result is None or signals:
                break
            outcomes.append(outcome_of(trial, result))
            _say(f"{place} of {len(trials)}: {_ending(outcomes[-1])}{' (kept)' if kept[trial] else ''}")
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if signals:
        _say("interrupted; run the same command again to continue")
    if outcomes:
        write(comparison, outcomes, folder)
    if signals:
        return 128 + signals[0]
    return FAILED_STATUS if any(outcome.outcome == FAILED for outcome in outcomes) else 0


def write(comparison: Comparison, outcomes: Sequence[Outcome], folder: Path) -> None:
    """Write the page, its pictures and the JSON, and print the table."""
    from hybridps.cli.compare.pictures import draw_all

    accuracy = comparison.to_accuracy if comparison.to_accuracy is not None else stated_accuracy(outcomes)
    rows = table(outcomes, accuracy)
    content = {
        "comparison": msgspec.to_builtins(comparison),
        "accuracy": accuracy,
        "table": msgspec.to_builtins(rows),
        "trials": [msgspec.to_builtins(outcome) | {"points": _points(outcome)} for outcome in outcomes],
        "versions": _versions(),
    }
    (folder / JSON).write_text(json.dumps(content, indent=1) + "\n")
    _print(rows, accuracy)
    pictures = draw_all(outcomes, rows, accuracy)
    for name, picture in pictures.items():
        (folder / f"{name}.png").write_bytes(picture)
    (folder / PAGE).write_text(make_page(comparison, rows, outcomes, accuracy, pictures))
    _say(f"wrote {folder / PAGE}")


def _versions() -> dict[str, str | int]:
    """Return the versions and the machine that the figures were measured with."""
    versions: dict[str, str | int] = {"hybridps": __version__, "python": platform.python_version()}
    for name in ("mxnet", "numpy"):
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions | {"machine": platform.machine(), "cores": len(os.sched_getaffinity(0))}


def _ending(outcome: Outcome) -> str:
    """Return one line that says how a trial ended."""
    what = {FAILED: f"failed: {outcome.reason}", ENDED: "ended by the budget"}.get(outcome.outcome, "finished")
    accuracy = outcome.figures.get("accuracy")
    good = "" if accuracy is None else f", accuracy {accuracy:.4g}"
    line = f"{outcome.contender}, seed {outcome.seed}: {what}{good}, {outcome.seconds:.1f} s"
    if outcome.outcome != FAILED and not outcome.points:
        line += "; its script reported nothing: print lines such as `hybridps: epoch=3 accuracy=0.712 loss=0.83`"
    return line


def _points(outcome: Outcome) -> list[dict[str, float | None]]:
    return [point._asdict() for point in outcome.points]


def _print(rows: Sequence[Row], accuracy: float | None) -> None:
    """Print the table: on a terminal with `print_table`, elsewhere as lines with tabs between the cells."""
    lines = lines_of(rows, accuracy)
    if not sys.stdout.isatty():
        for line in lines:
            print("\t".join(line))
        return
    from rich.console import Console

    print_table(lines, Console())


def print_table(lines: Sequence[Sequence[str]], console: Console) -> None:
    """Print a table; if it is too wide, with rows and columns exchanged."""
    shown = _rich_table(lines)
    if console.measure(shown, options=console.options.update(width=10_000)).maximum > console.width:
        shown = _rich_table(list(zip(*lines, strict=True)))
    console.print(shown)


def _rich_table(lines: Sequence[Sequence[str]]) -> Table:
    """Return a table for a terminal. The first line has the titles. Text in brackets goes on a line of its own."""
    from rich.table import Table

    shown = Table()
    for number, title in enumerate(lines[0]):
        shown.add_column(title, justify="right" if number else "left")
    for line in lines[1:]:
        shown.add_row(*(text.replace(" (", "\n(", 1) for text in line))
    return shown


def _say(text: str) -> None:
    print(f"hybridps: {text}", file=sys.stderr, flush=True)
