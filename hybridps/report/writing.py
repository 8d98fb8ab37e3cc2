"""Writes the report of a run folder."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from hybridps.report.plots import plot
from hybridps.report.reading import read_run
from hybridps.report.summary import summarise


def make_report(folder: Path) -> dict[str, Any]:
    """Write `summary.json` and `training.png` into a run folder, and return the summary.

    Half-written lines are skipped. Raises HybridPSError if no worker wrote anything there, or if
    matplotlib is not installed; the summary is written before the plot.
    """
    run = read_run(folder)
    summary = summarise(run)
    _write_atomically(folder / "summary.json", json.dumps(summary, indent=1).encode() + b"\n")
    plot(run, summary, folder / "training.png")
    return summary


def _write_atomically(path: Path, content: bytes) -> None:
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
