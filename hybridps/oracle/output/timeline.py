"""Renders schedules as a Chrome trace (JSON, for chrome://tracing or Perfetto), and as a Gantt chart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hybridps.oracle.output.plots import figure_of
from hybridps.oracle.ssgd.schedule import Placed, end_seconds


def chrome_trace(schedules: Mapping[str, Sequence[Placed]]) -> dict[str, Any]:
    """Return the schedules in Chrome's trace event format: a process for each, with a thread for each resource."""
    events: list[dict[str, Any]] = []
    for process, (name, placed) in enumerate(schedules.items()):
        events.append({"ph": "M", "pid": process, "tid": 0, "name": "process_name", "args": {"name": name}})
        for thread, resource in enumerate(resources(placed)):
            named = {"name": "thread_name", "args": {"name": resource}}
            events.append({"ph": "M", "pid": process, "tid": thread} | named)
            events += [
                {
                    "ph": "X",
                    "pid": process,
                    "tid": thread,
                    "name": each.task.name,
                    "cat": resource,
                    "ts": 1e6 * each.start_seconds,
                    "dur": 1e6 * each.task.seconds,
                }
                for each in placed
                if each.task.resource == resource and each.task.seconds
            ]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def resources(placed: Sequence[Placed]) -> list[str]:
    """Return the resources that any task uses, in order of first use."""
    return list(dict.fromkeys(each.task.resource for each in placed if each.task.seconds))


def plot_schedules(schedules: Mapping[str, Sequence[Placed]], path: Path) -> None:
    """Draw a Gantt chart (PNG): a panel for each schedule, a lane for each resource, a colour for each kind of task."""
    kinds = list(dict.fromkeys(_kind(each) for placed in schedules.values() for each in placed if each.task.seconds))
    colour = {kind: f"C{number}" for number, kind in enumerate(kinds)}
    lanes = [resources(placed) for placed in schedules.values()]
    figure = figure_of(11, 1 + 0.55 * sum(1.5 + len(each) for each in lanes))
    heights = [1 + len(each) for each in lanes]
    panels = figure.subplots(len(schedules), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    for axes, (name, placed), names in zip(panels, schedules.items(), lanes, strict=True):
        for each in placed:
            if each.task.seconds:
                bar = [(1e3 * each.start_seconds, 1e3 * each.task.seconds)]
                lane = (names.index(each.task.resource) - 0.35, 0.7)
                axes.broken_barh(bar, lane, facecolor=colour[_kind(each)], edgecolor="white", linewidth=0.4)
        axes.set_yticks(range(len(names)), names)
        axes.invert_yaxis()
        axes.set_title(f"{name}: {1e3 * end_seconds(placed):.1f} ms", loc="left", fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
    panels[-1].set_xlabel("milliseconds")
    for kind in kinds:
        panels[-1].broken_barh([], (0, 0), facecolor=colour[kind], label=kind)
    figure.legend(loc="outside upper right", ncols=max(1, len(kinds)), frameon=False)
    figure.savefig(path, dpi=130, format="png")


def _kind(placed: Placed) -> str:
    return placed.task.name.split()[0]
