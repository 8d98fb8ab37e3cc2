"""The plot of a run: training loss and validation accuracy over the epochs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from io import BytesIO
from typing import Any

from hybridps.errors import HybridPSError
from hybridps.events import Planned
from hybridps.report.points import Point, points_of
from hybridps.report.reading import Run
from hybridps.report.traffic import in_words
from hybridps.report.training_file import Line, Worker, fraction, mean_loss

Value = Callable[[list[Line]], float | None]


def plot(run: Run, summary: dict[str, Any]) -> bytes:
    """Draw the loss and the accuracy of the workers and of the centre over the epochs. Return a PNG."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise HybridPSError("the plot needs matplotlib: pip install 'hybridps[demo]'") from None
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    if run.workers:
        _draw_workers(left, run, mean_loss)
        _draw_workers(right, run, _percent("val_top1_correct"))
        if run.has_centre():
            epochs, shares = _curve(run.workers.values(), _percent("centre_top1_correct"))
            right.plot(epochs, shares, "--", color="C3", linewidth=2.0, marker=".", label="centre")
    else:
        _draw_points(left, right, points_of(run))
    _label(left, "loss")
    _label(right, "accuracy (%)")
    figure.suptitle(_title(summary), fontsize=11)
    picture = BytesIO()
    figure.savefig(picture, dpi=130, format="png")
    return picture.getvalue()


def _draw_points(left: Any, right: Any, points: list[Point]) -> None:
    """Draw what the script reported: the mean of its workers, and the centre."""
    drawn = ((left, "loss", 1, "-"), (right, "accuracy", 100, "-"), (right, "centre_accuracy", 100, "--"))
    for axes, field, scale, style in drawn:
        known = [(point.epoch, scale * value) for point in points if (value := getattr(point, field)) is not None]
        if known:
            colour = "C3" if field == "centre_accuracy" else "C0"
            label = "centre" if field == "centre_accuracy" else "workers"
            axes.plot(*zip(*known, strict=True), style, color=colour, linewidth=2.0, marker=".", label=label)


def _draw_workers(axes: Any, run: Run, value: Value) -> None:
    """Draw the mean, and a thin line for each group, or for each worker if the groups are unknown or only one."""
    groups = {plan.worker: plan.group for plan in run.last(Planned) if plan.worker >= 0}
    kind = "each group" if len(set(groups.values())) > 1 else "each worker"
    members: dict[int, list[Worker]] = {}
    for number, worker in sorted(run.workers.items()):
        members.setdefault(groups.get(number, number) if kind == "each group" else number, []).append(worker)
    for count, (_, workers) in enumerate(sorted(members.items())):
        if len(members) > 1:
            label = kind if count == 0 else None
            axes.plot(*_curve(workers, value), color="0.55", linewidth=0.9, alpha=0.8, label=label)
    label = "mean of the workers" if len(run.workers) > 1 else "worker"
    axes.plot(*_curve(run.workers.values(), value), color="C0", linewidth=2.2, marker=".", label=label)


def _label(axes: Any, what: str) -> None:
    axes.set_xlabel("epoch")
    axes.set_ylabel(what)
    axes.grid(alpha=0.3)
    axes.set_axisbelow(True)
    axes.xaxis.get_major_locator().set_params(integer=True)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False)
    else:
        axes.text(0.5, 0.5, "not reported", color="0.5", ha="center", transform=axes.transAxes)
    axes.spines[["top", "right"]].set_visible(False)


def _title(summary: dict[str, Any]) -> str:
    def count(number: int, word: str) -> str:
        return f"{number} {word}" + ("" if number == 1 else "s")

    parts = [str(summary["algorithm"])]
    parts += [count(summary[f"{word}s"], word) for word in ("worker", "group", "server") if summary[f"{word}s"]]
    if "images_per_second" in summary:
        parts.append(f"{summary['images_per_second']:,.0f} images/s")
    if traffic := in_words(summary):
        parts.append(traffic)
    if summary["lost"]:
        parts.append(f"not finished: {', '.join(map(str, summary['lost']))}")
    return "  ·  ".join(parts)


def _curve(workers: Iterable[Worker], value: Value) -> tuple[list[int], list[float]]:
    """Return the epochs for which at least one worker has a value, and the value over those workers."""
    points: dict[int, list[Line]] = {}
    for worker in workers:
        for epoch, line in worker.epochs.items():
            points.setdefault(epoch, []).append(line)
    values = {epoch: value(lines) for epoch, lines in sorted(points.items())}
    kept = {epoch: number for epoch, number in values.items() if number is not None}
    return list(kept), list(kept.values())


def _percent(key: str) -> Value:
    return lambda lines: None if (share := fraction(lines, key)) is None else 100 * share
