"""The pictures of a report besides the training curves: where a step's time goes, its timeline, rates, and traffic."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from io import BytesIO
from typing import Any, NamedTuple

import numpy as np

from hybridps.errors import HybridPSError
from hybridps.quantities import counted
from hybridps.report.points import points_of
from hybridps.report.run_report import RunReport, since
from hybridps.report.step_time import PART_WORDS
from hybridps.report.traffic import Curve, GroupTraffic, at
from hybridps.tracing import Trace, TracedStep
from hybridps.tracing.reading import Interval, TracedServer

COLOURS = {
    "compute": "#4c78a8",
    "rest": "#4c78a8",
    "loading": "#9c755f",
    "waiting": "#e45756",
    "allreduce": "#f2a93b",
    "exchange": "#72b7b2",
    "averaging": "#b279a2",
    "communication": "#f2a93b",
    "other": "#bab0ac",
}
_BINS = 60
_Bars = tuple[Sequence[Interval], str, str]
"""When something was done, in seconds; its colour, and its name."""
_KINDS = {"vote": "waiting", "allreduce": "allreduce", "exchange": "exchange", "averaging": "averaging"}


class _Row(NamedTuple):
    """A row of the timeline."""

    name: str
    bars: list[_Bars]


def pictures_of(reports: Sequence[RunReport]) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the PNG of each picture that these runs have data for. Several runs are side by side."""
    if any(report.time for report in reports):
        yield "time", _time(reports)
    if any(len(group.steps) > 1 for report in reports for group in report.traffic):
        yield "rate", _rates(reports, "steps per second", lambda group: group.steps)
    if any(group.total for report in reports for group in report.traffic):
        yield "traffic", _rates(reports, "MB per second and group", lambda group: group.nbytes, 1e-6)
    if any(group.distances for report in reports for group in report.traffic):
        yield "distance", _distance(reports)
    if len(reports) > 1 and any(points_of(report.run) for report in reports):
        yield "learning", _learning(reports)
    time = reports[0].time if len(reports) == 1 else None
    if time is not None and time.clock is not None and time.diagnosis is not None:
        yield "timeline", _timeline(time.clock.trace, time.diagnosis.typical)


def _time(reports: Sequence[RunReport]) -> bytes:
    """Draw a bar for each run, or for each worker of a single run."""
    bars: list[tuple[str, dict[str, float]]] = []
    for report in reports:
        if report.time and len(reports) == 1:
            bars += [(f"worker {worker}", parts) for worker, parts in report.time.by_worker.items()]
        elif report.time:
            bars.append((report.name, report.time.parts))
    figure, axes = _figure(7, 1.2 + 0.38 * len(bars))
    places = np.arange(len(bars))[::-1]
    left = np.zeros(len(bars))
    for name in COLOURS:
        widths = np.array([1e3 * parts.get(name, 0.0) for _, parts in bars])
        if widths.any():
            axes.barh(places, widths, left=left, color=COLOURS[name], label=PART_WORDS[name], height=0.7)
            left += widths
    axes.set_yticks(places, [name for name, _ in bars])
    axes.set_xlabel("milliseconds per step (mean)")
    axes.legend(frameon=False, ncols=2, fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    return _png(figure)


def _rates(
    reports: Sequence[RunReport], label: str, curve: Callable[[GroupTraffic], Curve], scale: float = 1.0
) -> bytes:
    """Draw how fast a curve grows: the mean over the groups of each run, or each group of a single run."""
    figure, axes = _figure(7, 2.8)
    for number, report in enumerate(reports):
        curves = [curve(group) for group in report.traffic]
        if len(reports) > 1:
            _draw_rate(axes, sum_of(curves), report.start.when, scale / len(curves), f"C{number}", report.name)
            continue
        for group, each in zip(report.traffic, curves, strict=True):
            name = f"group {group.group}" if len(curves) > 1 else None
            _draw_rate(axes, each, report.start.when, scale, f"C{group.group}", name)
    axes.set_xlabel(since(reports))
    axes.set_ylabel(label)
    axes.set_ylim(bottom=0)
    _legend(axes)
    return _png(figure)


def _draw_rate(axes: Any, curve: Curve, start: float, scale: float, colour: str, name: str | None) -> None:
    if len(curve) > 1:
        edges = np.linspace(curve[0][0], curve[-1][0], min(_BINS, len(curve)) + 1)
        grown = np.diff(at(curve, edges)) / np.maximum(np.diff(edges), 1e-9)
        axes.plot((edges[1:] + edges[:-1]) / 2 - start, scale * grown, color=colour, label=name, linewidth=1.6)


def sum_of(curves: Sequence[Curve]) -> Curve:
    """Return the sum of growing curves, at all of their times."""
    times = np.array(sorted({when for curve in curves for when, _ in curve}))
    total = sum((at(curve, times) for curve in curves), np.zeros(len(times)))
    return list(zip(times.tolist(), total.tolist(), strict=True))


def _distance(reports: Sequence[RunReport]) -> bytes:
    figure, axes = _figure(7, 2.8)
    for number, report in enumerate(reports):
        for place, group in enumerate(group for group in report.traffic if group.distances):
            times, values = np.array(group.distances).T
            name = f"group {group.group}" if len(reports) == 1 else report.name if place == 0 else None
            colour = f"C{group.group if len(reports) == 1 else number}"
            axes.plot(times - report.start.when, values, color=colour, label=name, linewidth=1.4)
    axes.set_xlabel(since(reports))
    axes.set_ylabel("|w - centre| / |w| at exchanges")
    axes.set_ylim(bottom=0)
    lines = max(sum(bool(group.distances) for group in report.traffic) for report in reports)
    _legend(axes, "a line for each group" if len(reports) > 1 and lines > 1 else None)
    return _png(figure)


def _learning(reports: Sequence[RunReport]) -> bytes:
    figure, (left, right) = _figure(7, 3, 2)
    for number, report in enumerate(reports):
        points = points_of(report.run)
        # An epoch of an earlier launch, which this one continues, was before the start.
        before = max(0.0, points[0].when - points[0].seconds - report.start.when) if points else 0.0
        for axes, field, scale in ((left, "loss", 1), (right, "accuracy", 100)):
            values = [(before + each.seconds, getattr(each, field)) for each in points]
            known = [(seconds, scale * value) for seconds, value in values if value is not None]
            if known:
                axes.plot(*zip(*known, strict=True), marker=".", color=f"C{number}", label=report.name)
    for axes, label in ((left, "loss"), (right, "accuracy (%)")):
        axes.set_xlabel(since(reports), fontsize=8)
        axes.set_ylabel(label)
        _legend(axes)
    return _png(figure)


def _timeline(trace: Trace, step_id: tuple[int, int]) -> bytes:
    """Draw a step of all workers and servers that do something then, on one clock. `step_id`: its model and number."""
    zero, end, whose = _window(trace, step_id)
    workers = [_rows_of_worker(number, worker.steps, zero, end) for number, worker in sorted(trace.workers.items())]
    shown = [rows for rows in workers if any(row.bars for row in rows)]
    rows = [row for pair in shown for row in pair]
    rows += [
        row
        for number, server in sorted(trace.servers.items())
        if (row := _row_of_server(number, server, zero, end)).bars
    ]
    figure, axes = _figure(7, 1.4 + 0.3 * len(rows))
    for place, row in enumerate(rows):
        for times, colour, label in row.bars:
            spans = [(1e3 * (each.began - zero), 1e3 * (each.ended - each.began)) for each in times]
            axes.broken_barh(spans, (-place - 0.38, 0.76), color=colour, label=label)
    axes.set_yticks([-place for place in range(len(rows))], [row.name for row in rows], fontsize=8)
    axes.set_xlim(0, 1e3 * (end - zero))
    axes.set_ylim(0.4 - len(rows), 0.6)
    idle = len(workers) - len(shown)
    axes.set_xlabel(
        f"milliseconds of step {step_id[1]}{whose}" + f"; no step of {counted(idle, 'worker')} meanwhile" * bool(idle)
    )
    named = {label: bars for bars, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    axes.legend(
        named.values(), named, frameon=False, ncols=6, fontsize=7, loc="lower center", bbox_to_anchor=(0.5, 1.0)
    )
    return _png(figure)


def _window(trace: Trace, step_id: tuple[int, int]) -> tuple[float, float, str]:
    """Return when a step of all workers begins and ends.

    If groups do not train in step, it is that of the worker with the longest one, which the text names.
    """
    steps = {
        number: next(step for step in worker.steps if (step.model, step.number) == step_id)
        for number, worker in sorted(trace.workers.items())
    }
    if max(step.began for step in steps.values()) > min(step.time.ended for step in steps.values()):
        longest, step = max(steps.items(), key=lambda each: each[1].time.ended - each[1].began)
        return step.began, step.time.ended, f" of worker {longest}"
    return min(step.began for step in steps.values()), max(step.time.ended for step in steps.values()), ""


def _rows_of_worker(number: int, steps: Sequence[TracedStep], zero: float, end: float) -> tuple[_Row, _Row]:
    """Return what a worker computes and what it communicates, in all steps that it does from `zero` to `end`."""
    computing, communication = _Row(f"worker {number}", []), _Row("communication", [])
    for step in steps:
        own = [
            ([Interval(step.began, step.last_gradient)], "#a9c1da", "compute"),
            ([Interval(step.first_gradient, step.last_gradient)], COLOURS["compute"], "backward"),
            (step.loading, COLOURS["loading"], "loading"),
        ]
        sent = [
            ([span.time for span in step.spans if span.kind == kind], COLOURS[name], name)
            for kind, name in _KINDS.items()
        ]
        computing.bars.extend(_seen(own, zero, end))
        communication.bars.extend(_seen(sent, zero, end))
    return computing, communication


def _row_of_server(number: int, server: TracedServer, zero: float, end: float) -> _Row:
    rounds = [work.time for work in server.work if work.kind == "round"]
    return _Row(f"server {number}: rounds", list(_seen([(rounds, "#54a24b", "round at a server")], zero, end)))


def _seen(bars: Iterable[_Bars], zero: float, end: float) -> Iterator[_Bars]:
    """Yield the bars of which something is seen between two times."""
    for times, colour, label in bars:
        if seen := [time for time in times if time.within(zero, end) > 0]:
            yield seen, colour, label


def _figure(width: float, height: float, columns: int = 1) -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise HybridPSError("the pictures need matplotlib: pip install 'hybridps[demo]'") from None
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(1, columns)
    for each in np.atleast_1d(axes):
        each.grid(alpha=0.3)
        each.set_axisbelow(True)
        each.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _legend(axes: Any, title: str | None = None) -> None:
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=8, title=title, title_fontsize=8, alignment="left")
    elif not axes.has_data():
        axes.text(0.5, 0.5, "not reported", color="0.5", ha="center", transform=axes.transAxes)


def _png(figure: Any) -> bytes:
    picture = BytesIO()
    figure.savefig(picture, dpi=110, format="png")
    return picture.getvalue()
