"""The pictures of a report besides the training curves: where a step's time goes, its timeline, rates, and traffic."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from io import BytesIO
from typing import Any

import numpy as np

from hybridps.errors import HybridPSError
from hybridps.report.points import points_of
from hybridps.report.run_report import RunReport
from hybridps.report.step_time import PART_WORDS
from hybridps.report.traffic import Curve, GroupTraffic, at
from hybridps.tracing import Trace, TracedStep

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
_KINDS = {"vote": "waiting", "allreduce": "allreduce", "exchange": "exchange", "averaging": "averaging"}


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
            _draw_rate(axes, sum_of(curves), report.started, scale / len(curves), f"C{number}", report.name)
            continue
        for group, each in zip(report.traffic, curves, strict=True):
            name = f"group {group.group}" if len(curves) > 1 else None
            _draw_rate(axes, each, report.started, scale, f"C{group.group}", name)
    axes.set_xlabel("seconds since the start")
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
            colour = f"C{place if len(reports) == 1 else number}"
            axes.plot(times - report.started, values, color=colour, label=name, linewidth=1.4)
    axes.set_xlabel("seconds since the start")
    axes.set_ylabel("|w - centre| / |w| at exchanges")
    axes.set_ylim(bottom=0)
    _legend(axes)
    return _png(figure)


def _learning(reports: Sequence[RunReport]) -> bytes:
    figure, (left, right) = _figure(7, 3, 2)
    for number, report in enumerate(reports):
        points = points_of(report.run)
        for axes, field, scale in ((left, "loss", 1), (right, "accuracy", 100)):
            known = [(each.seconds, scale * value) for each in points if (value := getattr(each, field)) is not None]
            if known:
                axes.plot(*zip(*known, strict=True), marker=".", color=f"C{number}", label=report.name)
    for axes, label in ((left, "loss"), (right, "accuracy (%)")):
        axes.set_xlabel("seconds since training began")
        axes.set_ylabel(label)
        _legend(axes)
    return _png(figure)


def _timeline(trace: Trace, step_id: tuple[int, int]) -> bytes:
    """Draw a step of all workers and servers on one clock. `step_id`: its model and number.

    If groups do not train in step, it is that of the first worker, with the steps that the others do meanwhile.
    """
    steps = {
        number: next(step for step in worker.steps if (step.model, step.number) == step_id)
        for number, worker in sorted(trace.workers.items())
    }
    zero, end = min(step.began for step in steps.values()), max(step.time.ended for step in steps.values())
    whose = ""
    if max(step.began for step in steps.values()) > min(step.time.ended for step in steps.values()):
        first, step = next(iter(steps.items()))
        zero, end, whose = step.began, step.time.ended, f" of worker {first}"
    row = {
        number: [step for step in trace.workers[number].steps if step.began < end and zero < step.time.ended]
        for number in steps
    }
    lines = 2 * len(row) + len(trace.servers)
    figure, axes = _figure(7, 1.4 + 0.3 * lines)
    ticks: list[tuple[float, str]] = []
    place = float(lines)
    for number, each in row.items():
        for step in each:
            _draw_step(axes, step, place, zero)
        ticks += [(place, f"worker {number}"), (place - 1, "communication")]
        place -= 2
    for number, server in sorted(trace.servers.items()):
        spans = [work.time for work in server.work if work.kind == "round" and work.time.within(zero, end) > 0]
        _bars(axes, [(each.began, each.ended) for each in spans], place, zero, "#54a24b", "round at a server")
        ticks.append((place, f"server {number}: rounds"))
        place -= 1
    axes.set_yticks([at for at, _ in ticks], [name for _, name in ticks], fontsize=8)
    axes.set_xlim(0, 1e3 * (end - zero))
    axes.set_ylim(place + 0.4, lines + 0.6)
    axes.set_xlabel(f"milliseconds of step {step_id[1]}{whose}")
    named = {label: bars for bars, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    axes.legend(
        named.values(), named, frameon=False, ncols=6, fontsize=7, loc="lower center", bbox_to_anchor=(0.5, 1.0)
    )
    return _png(figure)


def _draw_step(axes: Any, step: TracedStep, place: float, zero: float) -> None:
    _bars(axes, [(step.began, step.last_gradient)], place, zero, "#a9c1da", "compute")
    _bars(axes, [(step.first_gradient, step.last_gradient)], place, zero, COLOURS["compute"], "backward")
    _bars(axes, [(each.began, each.ended) for each in step.loading], place, zero, COLOURS["loading"], "loading")
    for kind, name in _KINDS.items():
        times = [(span.time.began, span.time.ended) for span in step.spans if span.kind == kind]
        _bars(axes, times, place - 1, zero, COLOURS[name], name)


def _bars(axes: Any, times: Sequence[tuple[float, float]], place: float, zero: float, colour: str, label: str) -> None:
    spans = [(1e3 * (began - zero), 1e3 * (ended - began)) for began, ended in times]
    if spans:
        axes.broken_barh(spans, (place - 0.38, 0.76), color=colour, label=label)


def _figure(width: float, height: float, columns: int = 1) -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise HybridPSError("the pictures need matplotlib: pip install 'hybridps[demo]'") from None
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(1, columns)
    for each in np.atleast_1d(axes):
        each.grid(alpha=0.3)
        each.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _legend(axes: Any) -> None:
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=8)
    elif not axes.has_data():
        axes.text(0.5, 0.5, "not reported", color="0.5", ha="center", transform=axes.transAxes)


def _png(figure: Any) -> bytes:
    picture = BytesIO()
    figure.savefig(picture, dpi=110, format="png")
    return picture.getvalue()
