"""A picture of the results: bandwidth by size, and the time for the gradients of ResNet-50."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.results import LIMITS, OURS, Result, size_text

COLOURS = {
    OURS: "#c1272d",
    "mpi_flat": "#0a5c9e",
    "mpi_per_tensor": "#5aa0d8",
    "gloo_flat": "#2e7d32",
    "gloo_ddp": "#8bc34a",
    "horovod": "#7b3fa0",
    "horovod_tuned": "#c39bd8",
    "memory_limit": "#444444",
    "link_limit": "#999999",
}
LABELS = {
    OURS: "hybridps",
    "mpi_flat": "MPI.Allreduce, flat",
    "mpi_per_tensor": "MPI.Allreduce, per tensor",
    "gloo_flat": "gloo, flat",
    "gloo_ddp": "gloo, DDP's buckets",
    "horovod": "Horovod, defaults",
    "horovod_tuned": "Horovod, tuned",
    "memory_limit": "limit of the memory",
    "link_limit": "limit of the link",
}


def plot(results: Sequence[Result], path: Path) -> None:
    """Draw the results to a file. Raises ImportError without matplotlib."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    flat = [result for result in results if result["case"] == "flat"]
    rest = [result for result in results if result["case"] != "flat"]
    panels = [(_bandwidth, flat, 3)] * bool(flat) + [(_bars, rest, 2)] * bool(rest)
    figure = Figure(figsize=(2 + 2.4 * sum(width for *_, width in panels), 5.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(panels), squeeze=False, width_ratios=[width for *_, width in panels])[0]
    for axis, (draw, chosen, _) in zip(axes, panels, strict=True):
        draw(axis, chosen)
    figure.suptitle(_title(results[0]))
    figure.savefig(path, dpi=130)


def _title(result: Result) -> str:
    words = [f"Allreduce, {result['ranks']} ranks"]
    words += [f"{result['nodes']} nodes"] if result["nodes"] > 1 else []
    words += [f"links of {result['link_rate']}"] if result["link_rate"] else []
    words += [f"{result['vectors']} vectors a rank"] if result["vectors"] > 1 else []
    words += [f"{result['wire']} on the wire"] if result["wire"] else []
    return f"{', '.join(words)}, {result['hardware']['cores']} cores"


def _bandwidth(axis: Any, results: Sequence[Result]) -> None:
    for name in COLOURS:
        points = [(r["bytes"], r["bytes"] / r["seconds"][name] / 1e9) for r in results if name in r["seconds"]]
        if points:
            axis.plot(*zip(*points, strict=True), label=LABELS[name], color=COLOURS[name], **_line(name))
    sizes = [result["bytes"] for result in results]
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xticks(sizes, [size_text(size) for size in sizes], rotation=45, ha="right")
    axis.minorticks_off()
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_xlabel("size of a vector")
    axis.set_ylabel("size / median time, GB/s")
    axis.set_title("One flat buffer")
    axis.grid(alpha=0.3)
    axis.legend(fontsize=9)


def _line(name: str) -> dict[str, Any]:
    if name in LIMITS:
        return {"linestyle": "--", "linewidth": 1.6}
    if name == OURS:
        return {"marker": "o", "markersize": 5, "linewidth": 2.6, "zorder": 3}
    return {"marker": "o", "markersize": 4, "linewidth": 1.4}


def _bars(axis: Any, results: Sequence[Result]) -> None:
    seconds = results[0]["seconds"]
    names = [name for name in COLOURS if name in seconds and name not in LIMITS][::-1]
    bars = axis.barh(
        [LABELS[name] for name in names],
        [1e3 * seconds[name] for name in names],
        color=[COLOURS[name] for name in names],
    )
    axis.bar_label(bars, fmt="%.3g", padding=3)
    for name in LIMITS:
        if name in seconds:
            axis.axvline(1e3 * seconds[name], color=COLOURS[name], linestyle="--", label=LABELS[name])
    axis.set_xlabel("median time, ms")
    axis.set_title("The 161 gradients of ResNet-50")
    axis.margins(x=0.12)
    axis.grid(axis="x", alpha=0.3)
    axis.set_axisbelow(True)
    if any(name in seconds for name in LIMITS):
        axis.legend(fontsize=9, loc="upper right")
