"""The pictures of a comparison, as PNG files in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from typing import Any

import numpy as np

from hybridps.cli.compare.outcomes import Outcome, Row, accuracy_of
from hybridps.cli.compare.trials import FAILED
from hybridps.errors import HybridPSError
from hybridps.report import Point

Draw = Callable[[Any, Mapping[str, list[Outcome]]], None]

_MB = 1e6
_COLOURS, _MARKERS, _STYLES = 10, "o^sDvPXd*<>hp8", ("-", "-.", ":")


def draw_all(outcomes: Sequence[Outcome], rows: Sequence[Row], accuracy: float | None) -> dict[str, bytes]:
    """Return all pictures that have something to show, by name. Raises HybridPSError without matplotlib."""
    groups = {row.contender: [each for each in outcomes if each.contender == row.contender] for row in rows}
    done = {name: [each for each in trials if each.outcome != FAILED] for name, trials in groups.items()}
    pictures: dict[str, Draw] = {
        "accuracy-over-time": lambda axes, trials: _accuracy(axes, trials, "seconds", "seconds", accuracy),
        "accuracy-over-bytes": lambda axes, trials: _accuracy(axes, trials, "nbytes", "MB across groups", accuracy),
        "accuracy-over-epochs": lambda axes, trials: _accuracy(axes, trials, "epoch", "epoch", accuracy),
        "loss-over-epochs": _loss,
        "distance": _distance,
        "traffic": lambda axes, trials: _traffic(axes, rows, any(each.link_bytes is not None for each in outcomes)),
    }
    drawn = {name: _picture(draw, done) for name, draw in pictures.items()}
    return {name: picture for name, picture in drawn.items() if picture is not None}


def _picture(draw: Draw, trials: Mapping[str, list[Outcome]]) -> bytes | None:
    """Return a picture; None if nothing was drawn."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise HybridPSError("the page needs matplotlib: pip install 'hybridps[demo]'") from None
    figure = Figure(figsize=(7.2, 4.4), layout="constrained")
    axes = figure.subplots()
    draw(axes, trials)
    if not axes.has_data():
        return None
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        figure.legend(loc="outside upper left", ncols=3, frameon=False, fontsize=9)
    picture = BytesIO()
    figure.savefig(picture, dpi=130, format="png")
    return picture.getvalue()


def _accuracy(axes: Any, trials: Mapping[str, list[Outcome]], field: str, title: str, accuracy: float | None) -> None:
    """Draw, for each contender, the mean over the seeds at the mean place of each epoch, and their range as a band.

    The accuracy of the centre is a dashed line.
    """
    scale = _MB if field == "nbytes" else 1.0
    drawn = False
    for number, (name, outcomes) in enumerate(trials.items()):
        if field == "nbytes" and not any(point.nbytes for each in outcomes for point in each.points):
            continue
        drawn |= _band(axes, outcomes, field, scale, accuracy_of, _look(number), name)
        _band(axes, outcomes, field, scale, _centre, _look(number), None)
    if drawn and accuracy is not None:
        axes.axhline(100 * accuracy, color="0.4", linewidth=0.8, linestyle=":")
    axes.set_xlabel(title)
    axes.set_ylabel("accuracy (%)")
    if field == "nbytes" and drawn and _far_apart(trials):
        from matplotlib.ticker import LogLocator

        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter("{x:g}")


def _band(
    axes: Any,
    outcomes: Sequence[Outcome],
    field: str,
    scale: float,
    value: Callable[[Point], float | None],
    look: Mapping[str, Any],
    name: str | None,
) -> bool:
    """Draw the epochs that all seeds with any value have, and return whether there were any.

    Without a name, the line is dashed and has no band.
    """
    epochs: dict[float, list[tuple[float, float]]] = {}
    outcomes = [outcome for outcome in outcomes if any(value(point) is not None for point in outcome.points)]
    for outcome in outcomes:
        for point in outcome.points:
            share = value(point)
            if share is not None:
                epochs.setdefault(point.epoch, []).append((getattr(point, field) / scale, 100 * share))
    seen = [np.array(epochs[epoch]) for epoch in sorted(epochs) if len(epochs[epoch]) == len(outcomes)]
    if not seen:
        return False
    places, means = ([float(part[:, column].mean()) for part in seen] for column in (0, 1))
    style: dict[str, Any] = {"color": look["color"], "linewidth": 1.3, "linestyle": "--"}
    if name:
        style = {**look, "linewidth": 1.8, "alpha": 0.8, "markersize": 5, "label": name}
    axes.plot(places, means, **style)
    if name and len(outcomes) > 1:
        least, most = ([float(end(part[:, 1])) for part in seen] for end in (np.min, np.max))
        axes.fill_between(places, least, most, color=look["color"], alpha=0.15, linewidth=0)
    return True


def _look(number: int) -> dict[str, Any]:
    """Return the colour, marker and line of a contender. No two contenders share all three."""
    style = _STYLES[number // _COLOURS % len(_STYLES)]
    return {"color": f"C{number % _COLOURS}", "marker": _MARKERS[number % len(_MARKERS)], "linestyle": style}


def _plain(number: int) -> dict[str, Any]:
    """Return the same without a marker."""
    return _look(number) | {"marker": ""}


def _far_apart(trials: Mapping[str, list[Outcome]]) -> bool:
    """Return whether some contenders send many times more than others."""
    sent = [outcome.points[-1].nbytes for outcomes in trials.values() for outcome in outcomes if outcome.points]
    sent = [nbytes for nbytes in sent if nbytes]
    return max(sent) > 8 * min(sent)


def _centre(point: Point) -> float | None:
    return point.centre_accuracy if point.accuracy is not None else None


def _loss(axes: Any, trials: Mapping[str, list[Outcome]]) -> None:
    for number, (name, outcomes) in enumerate(trials.items()):
        curves = [[(point.epoch, point.loss) for point in each.points if point.loss is not None] for each in outcomes]
        for place, curve in enumerate(filter(None, curves)):
            label = name if place == 0 else None
            axes.plot(*zip(*curve, strict=True), linewidth=1.4, label=label, **_plain(number))
    axes.set_xlabel("epoch")
    axes.set_ylabel("loss")


def _distance(axes: Any, trials: Mapping[str, list[Outcome]]) -> None:
    """Draw a line for each group and seed."""
    for number, (name, outcomes) in enumerate(trials.items()):
        curves = [curve for outcome in outcomes for curve in outcome.distances]
        for place, curve in enumerate(curves):
            label = name if place == 0 else None
            axes.plot(*zip(*curve, strict=True), linewidth=0.9, alpha=0.7, label=label, **_plain(number))
        if any(distance > 0 for curve in curves for _, distance in curve):
            axes.set_yscale("log")
    axes.set_xlabel("seconds")
    axes.set_ylabel("|w - centre| / |w|, at exchanges")


def _traffic(axes: Any, rows: Sequence[Row], has_headers: bool) -> None:
    """Draw bars of the bytes sent and, on top, of the payload that exchanges in every step would have added.

    `has_headers`: the bytes sent include headers. The headers of further exchanges are not known, so nothing goes on
    top.
    """
    known = [row for row in rows if row.nbytes is not None]
    if not known:
        return
    places = range(len(known))
    sent = [row.nbytes.mean / _MB if row.nbytes else 0.0 for row in known]
    saved = [row.bytes_saved.mean / _MB if row.bytes_saved else 0.0 for row in known]
    axes.barh(places, sent, color="C0", label="sent")
    if not has_headers:
        axes.barh(places, saved, left=sent, color="0.85", label="saved, compared with an exchange in every step")
    axes.set_yticks(places, [row.contender for row in known])
    axes.invert_yaxis()
    axes.set_xlabel("MB across groups")
