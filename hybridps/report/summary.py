"""The report of a run: its size, accuracy, speed and traffic, and the plot."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from hybridps.events import Closed, Planned
from hybridps.report.plots import plot
from hybridps.report.reading import Run, fraction, mean_loss, read_run


def make_report(folder: Path) -> dict[str, Any]:
    """Write `summary.json` and `training.png` into a run folder, and return the summary.

    Half-written lines are skipped. Raises HybridPSError if no worker wrote anything there, or if
    matplotlib is not installed; the summary is written before the plot.
    """
    run = read_run(folder)
    summary = summarise(run)
    _write_atomically(folder / "summary.json", json.dumps(summary, indent=1).encode() + b"\n")
    _write_atomically(folder / "training.png", plot(run, summary))
    return summary


def summarise(run: Run) -> dict[str, Any]:
    """The figures of `summary.json`. Accuracies are fractions of all validation images, at the last common epoch."""
    judged = [run.workers[number] for number in run.finished()] or list(run.workers.values())
    epochs = sorted(set.intersection(*(set(worker.epochs) for worker in judged))) if judged else []
    last = epochs[-1] if epochs else 0
    validated = [epoch for epoch in epochs if all(worker.epochs[epoch].get("val_images") for worker in judged)]
    lines = [worker.epochs[validated[-1]] for worker in judged] if validated else []
    plans, closed = run.last(Planned), run.last(Closed)
    top1 = fraction(lines, "val_top1_correct")
    return {
        "algorithm": run.algorithm(),
        "groups": max((plan.groups for plan in plans), default=1),
        "workers": run.expected,
        "servers": max((len(plan.servers) for plan in plans), default=0),
        "epochs": last,
        "top1": top1,
        "top5": fraction(lines, "val_top5_correct"),
        "top1_centre": fraction(lines, "centre_top1_correct") if run.has_centre() else top1,
        "loss": mean_loss([worker.epochs[last] for worker in judged if last in worker.epochs]),
        "images_per_second": sum(worker.images_per_second() for worker in judged),
        "seconds": max((worker.seconds() for worker in judged), default=0.0),
        "bytes_within_groups": sum(event.bytes_within_group for event in closed),
        "bytes_to_servers": sum(event.bytes_to_servers for event in closed),
        "finished": run.finished(),
        "lost": run.lost(),
    }


def _write_atomically(path: Path, content: bytes) -> None:
    partial = path.with_name(f".{path.name}.partial")
    partial.write_bytes(content)
    os.replace(partial, path)
