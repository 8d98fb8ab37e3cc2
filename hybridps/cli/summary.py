"""Prints what is known of a run folder: a table on a terminal, `key: value` lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hybridps.cli.run.children.output import discard
from hybridps.errors import HybridPSError
from hybridps.quantities import counted, duration, rounded

_NOTES = {
    "epochs": "the script reports none: call hybridps.report_progress",
    "lost": "the job ended well, but this folder has nothing about their end: do all hosts see it?",
    "slow": "named while the job ran; factor: how many times as long as the others",
    "slow_workers": "found in the trace afterwards, over all steps; percent: how much longer than the others",
}
"""What is printed with some figures."""


def print_summary(folder: str, *, only_if_events: bool = False) -> None:
    """Write the report of a run folder, and print its summary.

    Raises HybridPSError if there is nothing to report, or the report cannot be written. With `only_if_events`, as at
    the end of a run, it prints nothing if no process wrote events, and only a note if the last launch has not trained
    and there is a report of an earlier one, or if the report cannot be written. What cannot be printed is then dropped.
    """
    if not only_if_events:
        _report(Path(folder))
    elif any(any(Path(folder).glob(f"{kind}-*.jsonl")) for kind in ("train", "hybridps")):
        with suppress(OSError):  # standard output or standard error is a closed pipe, or a file on a full disk
            _report_at_end(Path(folder))
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except OSError:
                discard(stream)


def _report(folder: Path) -> None:
    from hybridps.report import make_report

    _show(folder, make_report(folder))


def _report_at_end(folder: Path) -> None:
    try:
        from hybridps.report import is_of_earlier, make_report

        summary = None if is_of_earlier(folder) else make_report(folder)
    except (HybridPSError, ImportError, OSError) as error:
        print(f"hybridps: no report for {folder}: {error}", file=sys.stderr)
        return
    if summary is None:
        print(f"hybridps: nothing was trained, so {folder / 'report.html'} stays as it was")
    else:
        _show(folder, summary)


def _show(folder: Path, summary: dict[str, Any]) -> None:
    findings = summary.pop("findings", [])
    noted = _noted(folder, summary)
    said = {key: text_of(value) for key, value in summary.items() if value is not None}
    said |= {key: _workers(summary[key]) for key in ("finished", "lost") if summary.get(key)}
    said |= {key: f"{said[key]} ({_NOTES[key]})" for key in noted}
    if not sys.stdout.isatty():
        for key, text in said.items():
            print(f"{key}: {text}")
        print("".join(f"{finding}\n" for finding in findings), end="")
        print(f"hybridps: wrote {folder / 'report.html'}")
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title=str(folder), show_header=False)
    for key, text in said.items():
        table.add_row(key.replace("_", " "), text)
    console = Console()
    console.print(table)
    for finding in findings:
        console.print(f"- {finding}", highlight=False)
    console.print(f"The page: {folder / 'report.html'}", highlight=False)


def _workers(numbers: Sequence[int]) -> str:
    """Return the numbers of workers as text, so that they are not taken for counts."""
    return f"worker{'s' if len(numbers) > 1 else ''} {text_of(numbers)}"


def _noted(folder: Path, summary: Mapping[str, Any]) -> list[str]:
    """Return the figures that are printed with a note."""
    noted = [key for key in ("slow", "slow_workers") if summary.get(key)]
    if summary.get("status") == 0 and summary.get("lost"):
        noted.append("lost")
    if summary.get("epochs") == 0 and summary.get("finished"):
        from hybridps.report import points_of, read_run

        if not points_of(read_run(folder)):  # not even of epoch 0
            noted.append("epochs")
    return noted


def print_comparison(folders: Sequence[str], page: Path) -> None:
    """Write the page of several runs, and print their figures, one line per run. Raises HybridPSError."""
    from hybridps.report import compare_reports

    summaries = compare_reports([Path(folder) for folder in folders], page)
    for folder, summary in zip(folders, summaries, strict=True):
        figures = ("algorithm", "accuracy", "seconds", "step_ms", "bytes_across_groups")
        said = ", ".join(f"{name} {text_of(summary[name])}" for name in figures if summary.get(name) is not None)
        print(f"{folder}: {said}")
    print(f"hybridps: wrote {page}")


def write_trace(folder: Path, out: Path | None) -> None:
    """Write the Chrome trace of the last launch in a run folder.

    Raises HybridPSError if it was not traced or the file cannot be written.
    """
    from hybridps.report import launch_id, read_run
    from hybridps.tracing import on_one_clock, read_trace, write_chrome_trace

    clock = on_one_clock(read_trace(folder, launch_id(read_run(folder))))
    if not clock.trace:
        raise HybridPSError(
            f"{folder} has no trace of a step: start the run with `hybridps run --trace --run {folder}`"
        )
    path = out or folder / "trace.json"
    try:
        count = write_chrome_trace(clock, path)
    except OSError as error:
        raise HybridPSError(f"the trace cannot be written to {str(path)!r}: {error.strerror}") from None
    who = f"{counted(len(clock.trace.workers), 'worker')} and {counted(len(clock.trace.servers), 'server')}"
    print(
        f"hybridps: wrote {path}: {count} events of {who}; their clocks are "
        f"aligned to within {duration(clock.uncertainty, 2)}. Open it at https://ui.perfetto.dev"
    )


def text_of(value: Any) -> str:
    """Return a short text for a value: numbers with four digits, lists with commas.

    >>> text_of([1, 0.123456]), text_of([])
    ('1, 0.1235', 'none')
    """
    if isinstance(value, float):
        return rounded(value, 4)
    if isinstance(value, (list, tuple)):
        between = "; " if any(isinstance(part, Mapping) for part in value) else ", "
        return between.join(text_of(part) for part in value) or "none"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {text_of(part)}" for key, part in value.items())
    return str(value)
