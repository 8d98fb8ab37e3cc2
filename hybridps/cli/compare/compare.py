"""`hybridps compare`, from the command line to the page."""

from __future__ import annotations

import json
import os
import platform
import shlex
import shutil
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from types import FrameType

import msgspec

from hybridps import __version__
from hybridps.cli.compare.contenders import check_contender, parse_contenders
from hybridps.cli.compare.outcomes import Outcome, Row, outcome_of, stated_accuracy, table
from hybridps.cli.compare.page import cells, make_page
from hybridps.cli.compare.plan import Comparison, Trial, trial_command, trials_of
from hybridps.cli.compare.trials import ENDED, FAILED, Result, kept_result, run_trial
from hybridps.cli.run import user_command
from hybridps.errors import FAILED as FAILED_STATUS
from hybridps.errors import ConfigError
from hybridps.links import Links, bits_per_second, missing

PAGE, JSON = "compare.html", "compare.json"


def compare(comparison: Comparison, folder: Path, *, dry_run: bool = False) -> int:
    """Run all trials that the folder does not have yet, and write the page. Returns the exit status.

    Raises HybridPSError before anything runs for what cannot be met. A trial that fails does not end the others; the
    page says so, and the status is 1.
    """
    contenders = parse_contenders(",".join(comparison.contenders))
    comparison = msgspec.structs.replace(comparison, contenders=tuple(contender.name for contender in contenders))
    _check(comparison)
    for contender in contenders:
        check_contender(contender)
    trials = trials_of(comparison, contenders, folder)
    kept = {trial: kept_result(comparison, trial) for trial in trials}
    if dry_run:
        links = Links("hybridps-0", comparison.groups, comparison.link) if comparison.link else None
        for trial in trials:
            have = "  # kept" if kept[trial] else ""
            print(f"{shlex.join(trial_command(comparison, trial, links))}{have}")
        return 0
    if comparison.link and (reason := missing()):
        raise ConfigError(f"--link {comparison.link}: {reason}")
    before = signal.signal(signal.SIGTERM, _leave)
    try:
        outcomes = [_run(comparison, trial, kept[trial], place, len(trials)) for place, trial in enumerate(trials, 1)]
    finally:
        signal.signal(signal.SIGTERM, before)
    write(comparison, outcomes, folder)
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
    _say(f"the page is {folder / PAGE}")


def _versions() -> dict[str, str | int]:
    """What the figures were measured with."""
    versions: dict[str, str | int] = {"hybridps": __version__, "python": platform.python_version()}
    for name in ("mxnet", "numpy"):
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions | {"machine": platform.machine(), "cores": len(os.sched_getaffinity(0))}


def _check(comparison: Comparison) -> None:
    """Raise ConfigError for what cannot be."""
    user_command.check(comparison.command)
    try:
        bits_per_second(comparison.link or "1gbit")
    except ValueError as error:
        raise ConfigError(f"--link {comparison.link}: {error}") from None
    if not 1 <= comparison.groups <= comparison.workers:
        raise ConfigError(
            f"-n {comparison.workers} --groups {comparison.groups}: every group needs a worker, so give at most "
            f"{comparison.workers} groups"
        )
    if comparison.to_accuracy is not None and not 0 < comparison.to_accuracy <= 1:
        raise ConfigError(f"--to-accuracy {comparison.to_accuracy:g} is no share: give a number from 0 to 1, e.g. 0.9")


def _run(comparison: Comparison, trial: Trial, kept: Result | None, place: int, count: int) -> Outcome:
    """The outcome of a trial that is run now, or was run before."""
    result = kept
    if result is None:
        _say(f"{place} of {count}: {trial.title}; its output is in {trial.folder}")
        result = run_trial(comparison, trial)
    outcome = outcome_of(trial, result)
    what = {FAILED: f"failed: {result.reason}", ENDED: "ended by the budget"}.get(result.outcome, "finished")
    accuracy = outcome.figures.get("accuracy")
    good = "" if accuracy is None else f", accuracy {accuracy:.4g}"
    _say(f"{place} of {count}: {trial.title}: {what}{good}, {result.seconds:.1f} s{' (kept)' if kept else ''}")
    if result.outcome != FAILED and not outcome.points:
        _say("its script reported nothing: print lines such as `hybridps: epoch=3 accuracy=0.712 loss=0.83`")
    return outcome


def _points(outcome: Outcome) -> list[dict[str, float | None]]:
    return [point._asdict() for point in outcome.points]


def _print(rows: Sequence[Row], accuracy: float | None) -> None:
    """The table on standard output: lines of words with tabs between them, unless it is a terminal."""
    lines = [cells(row, accuracy) for row in rows]
    titles = [title for title in lines[0] if title == "contender" or any(line[title] != "-" for line in lines)]
    if not sys.stdout.isatty():
        for words in (titles, *([line[title] for title in titles] for line in lines)):
            print("\t".join(words))
        return
    from rich.console import Console
    from rich.table import Table

    shown = Table(*titles)
    for line in lines:
        shown.add_row(*(line[title] for title in titles))
    Console(width=max(shutil.get_terminal_size().columns, 80)).print(shown)


def _say(text: str) -> None:
    print(f"hybridps: {text}", file=sys.stderr, flush=True)


def _leave(number: int, frame: FrameType | None) -> None:
    """Leave through all `finally` clauses, which end what was started and remove the namespaces."""
    sys.exit(128 + number)
