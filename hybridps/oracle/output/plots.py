"""Draws answers: the parts of the time, the roofline of scaling, and memory against its limit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hybridps.errors import OracleError
from hybridps.oracle.paradl import Answer, Work, predict


def plot(work: Work, answers: Sequence[Answer], path: Path) -> None:
    """Write a PNG with three panels. Raises OracleError if matplotlib is not installed or there are no answers."""
    if not answers:
        raise OracleError("there is no prediction to draw")
    answers = sorted(answers, key=lambda one: one.prediction.strategy)
    figure = figure_of(max(15.0, 6 + 0.45 * len(answers)), 5.2)
    times, scaling, memory = figure.subplots(1, 3)
    _draw_times(times, answers)
    _draw_roofline(scaling, work, answers)
    _draw_memory(memory, work, answers)
    figure.suptitle(f"{work.network.name} on {work.machine.name}", fontsize=12)
    figure.savefig(path, dpi=130, format="png")


def figure_of(width: float, height: float) -> Any:
    """Make an empty figure, with sizes in inches. Raises OracleError if matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise OracleError("the plot needs matplotlib: pip install 'hybridps[demo]'") from None
    return Figure(figsize=(width, height), layout="constrained")


def _draw_times(axes: Any, answers: Sequence[Answer]) -> None:
    """Draw stacked bars: compute, and communication by kind. Infeasible answers are pale."""
    kinds = list(dict.fromkeys(kind for one in answers for kind in one.costs.communication_seconds))
    parts = [("compute", [one.prediction.compute_seconds_per_epoch for one in answers])]
    parts += [(kind, [one.costs.communication_seconds.get(kind, 0.0) for one in answers]) for kind in kinds]
    bottom = [0.0] * len(answers)
    for number, (name, heights) in enumerate(parts):
        if any(heights):
            _bars(axes, answers, heights, bottom, f"C{number}")
            axes.bar([0], [0], color=f"C{number}", label=name)
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    axes.set_ylabel("seconds per epoch")
    _label_bars(axes, answers)
    _legend_above(axes)


def _draw_roofline(axes: Any, work: Work, answers: Sequence[Answer]) -> None:
    """Draw samples per second over PEs. The slanted roof is compute alone, the dashed one communication alone."""
    samples = work.network.samples
    strategies = list(dict.fromkeys(one.prediction.strategy for one in answers))
    counts = sorted({one.prediction.pes for one in answers})
    alone = predict(work, "serial", 1, answers[0].prediction.global_batch).prediction.seconds_per_epoch
    axes.plot(counts, [count * samples / alone for count in counts], color="0.2", linewidth=1.2, label="compute roof")
    for number, name in enumerate(strategies):
        mine = sorted((one.prediction for one in answers if one.prediction.strategy == name), key=lambda one: one.pes)
        xs = [one.pes for one in mine]
        axes.plot(xs, [samples / one.seconds_per_epoch for one in mine], "o-", color=f"C{number}", label=name)
        talking = [one for one in mine if one.communication_seconds_per_epoch > 0]
        roof = [samples / one.communication_seconds_per_epoch for one in talking]
        axes.plot([one.pes for one in talking], roof, "--", color=f"C{number}", linewidth=0.9)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("PEs")
    axes.set_ylabel("samples per second (dashed: communication alone)")
    axes.grid(alpha=0.3)
    _legend_above(axes)


def _draw_memory(axes: Any, work: Work, answers: Sequence[Answer]) -> None:
    heights = [one.prediction.memory_bytes_per_pe / 1e9 for one in answers]
    _bars(axes, answers, heights, [0.0] * len(answers), "0.5")
    axes.axhline(work.machine.memory_bytes / 1e9, color="C3", linewidth=1.2, label=f"memory of {work.machine.name}")
    if max(heights) > 20e-9 * work.machine.memory_bytes:  # the limit would lie on the axis
        axes.set_yscale("log")
    axes.set_ylabel("GB per PE")
    _label_bars(axes, answers)
    _legend_above(axes)


def _legend_above(axes: Any) -> None:
    """Name the colours above the panel, where nothing is drawn."""
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=5, frameon=False, fontsize=7)


def _bars(axes: Any, answers: Sequence[Answer], heights: Sequence[float], bottom: Sequence[float], color: str) -> None:
    """Draw one bar per answer, pale if it is infeasible."""
    bars = axes.bar(_places(answers), heights, bottom=bottom, color=color)
    for bar, one in zip(bars, answers, strict=True):
        if not one.prediction.feasible:
            bar.set_alpha(0.3)


def _label_bars(axes: Any, answers: Sequence[Answer]) -> None:
    """Write the number of PEs below each bar, and the strategy below its bars."""
    places = _places(answers)
    many = len(answers) > 8
    axes.set_xticks(places, [str(one.prediction.pes) for one in answers], rotation=90 if many else 0, fontsize=8)
    for name in dict.fromkeys(one.prediction.strategy for one in answers):
        mine = [place for place, one in zip(places, answers, strict=True) if one.prediction.strategy == name]
        middle, below = sum(mine) / len(mine), axes.get_xaxis_transform()
        axes.text(middle, -0.11, name.replace("+", "+\n"), transform=below, ha="center", va="top", fontsize=8)
    axes.set_xlabel("PEs (pale: not feasible)", labelpad=36 if len(answers) > 1 else 12)
    axes.spines[["top", "right"]].set_visible(False)


def _places(answers: Sequence[Answer]) -> list[int]:
    """Return the positions of the bars: those of one strategy side by side, with a gap before the next strategy."""
    names = [one.prediction.strategy for one in answers]
    return [index + sum(names[at] != names[at + 1] for at in range(index)) for index in range(len(names))]
