"""The plot of a run: training loss and validation accuracy over the epochs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from hybridps.errors import HybridPSError
from hybridps.report.reading import Line, Run, Worker
from hybridps.report.summary import fraction, has_centre, mean_loss

Value = Callable[[list[Line]], float | None]


def plot(run: Run, summary: dict[str, Any], path: Path) -> None:
    """Draw the loss and the accuracy of the workers and of the centre over the epochs."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise HybridPSError("the plot needs matplotlib: pip install 'hybridps[demo]'") from None
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    _draw_loss(left, run)
    _draw_accuracy(right, run)
    figure.suptitle(_title(summary), fontsize=11)
    partial = path.with_name(f".{path.name}.partial")
    figure.savefig(partial, dpi=130, format="png")
    os.replace(partial, path)


def _draw_loss(axes: Any, run: Run) -> None:
    _draw_groups(axes, run, mean_loss)
    _draw_mean(axes, run, mean_loss)
    _label(axes, run, "training loss")


def _draw_accuracy(axes: Any, run: Run) -> None:
    def own(lines: list[Line]) -> float | None:
        return _percent(lines, "val_top1_correct")

    def centre(lines: list[Line]) -> float | None:
        return _percent(lines, "centre_top1_correct")

    _draw_groups(axes, run, own)
    _draw_mean(axes, run, own)
    if has_centre(run):
        axes.plot(*_curve(run.workers.values(), centre), "--", color="C3", linewidth=2.0, marker=".", label="centre")
    _label(axes, run, "validation top-1 (%)")


def _draw_mean(axes: Any, run: Run, value: Value) -> None:
    label = "mean of the workers" if len(run.workers) > 1 else "worker"
    axes.plot(*_curve(run.workers.values(), value), color="C0", linewidth=2.2, marker=".", label=label)


def _draw_groups(axes: Any, run: Run, value: Value) -> None:
    """Draw a thin line for each group, or for each worker if there is one group or the groups are unknown."""
    many = len(set(run.groups.values())) > 1
    members: dict[int, list[Worker]] = {}
    for number, worker in sorted(run.workers.items()):
        members.setdefault(run.groups.get(number, number) if many else number, []).append(worker)
    if len(members) < 2:
        return
    for count, (_, workers) in enumerate(sorted(members.items())):
        label = ("each group" if many else "each worker") if count == 0 else None
        axes.plot(*_curve(workers, value), color="0.55", linewidth=0.9, alpha=0.8, label=label)


def _label(axes: Any, run: Run, what: str) -> None:
    axes.set_xlabel("epoch")
    axes.set_ylabel(what)
    axes.grid(alpha=0.3)
    axes.xaxis.get_major_locator().set_params(integer=True)
    if axes.lines:
        axes.legend(frameon=False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _title(summary: dict[str, Any]) -> str:
    def count(number: int, word: str) -> str:
        return f"{number} {word}" + ("" if number == 1 else "s")

    parts = [str(summary["algorithm"])]
    parts += [count(summary[f"{word}s"], word) for word in ("worker", "group", "server") if summary[f"{word}s"]]
    parts.append(f"{summary['images_per_second']:,.0f} images/s")
    if summary["lost"]:
        parts.append(f"not finished: {', '.join(map(str, summary['lost']))}")
    return "  ·  ".join(parts)


def _curve(workers: Iterable[Worker], value: Value) -> tuple[list[int], list[float]]:
    """The epochs for which at least one worker has a value, and the value over those workers."""
    points: dict[int, list[Line]] = {}
    for worker in workers:
        for epoch, line in worker.epochs.items():
            points.setdefault(epoch, []).append(line)
    values = {epoch: value(lines) for epoch, lines in sorted(points.items())}
    kept = {epoch: number for epoch, number in values.items() if number is not None}
    return list(kept), list(kept.values())


def _percent(lines: list[Line], key: str) -> float | None:
    share = fraction(lines, key)
    return None if share is None else 100 * share
