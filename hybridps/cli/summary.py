"""Prints the summary of a run folder: a table on a terminal, `key: value` lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hybridps.errors import HybridPSError


def print_summary(folder: str, *, only_if_events: bool = False) -> None:
    """Write the report of a run folder, and print its summary.

    Raises HybridPSError if there is nothing to report. With `only_if_events`, at the end of a run, it prints nothing if
    nobody wrote there, and a note if the report cannot be written.
    """
    if only_if_events and not any(any(Path(folder).glob(f"{kind}-*.jsonl")) for kind in ("train", "hybridps")):
        return
    try:
        from hybridps.report import make_report

        summary = make_report(Path(folder))
    except (HybridPSError, ImportError) as error:
        if not only_if_events:
            raise
        print(f"hybridps: no report of {folder}: {error}", file=sys.stderr)
        return
    if not sys.stdout.isatty():
        for key, value in summary.items():
            print(f"{key}: {text_of(value)}")
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title=folder, show_header=False)
    for key, value in summary.items():
        table.add_row(key.replace("_", " "), text_of(value))
    Console().print(table)


def text_of(value: Any) -> str:
    """A short text for a value: numbers with four digits, lists with commas.

    >>> text_of([1, 0.123456]), text_of([])
    ('1, 0.1235', 'none')
    """
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, (list, tuple)):
        return ", ".join(text_of(part) for part in value) or "none"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {text_of(part)}" for key, part in value.items())
    return str(value)
