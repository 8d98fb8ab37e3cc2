"""The results of a comparison: the trials as curves and figures, and the table of the contenders."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
import numpy as np

from hybridps.cli.compare.plan import Trial
from hybridps.cli.compare.trials import FAILED, Result
from hybridps.errors import HybridPSError
from hybridps.report import Point, points_of, read_run, started, summarise, traffic_of


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """A trial as the page shows it."""

    contender: str
    seed: int
    outcome: str
    reason: str
    seconds: float
    """The duration of the whole run, including its start and end."""
    points: list[Point] = []
    distances: list[list[tuple[float, float]]] = []
    """For each group: seconds since training began, and |w - centre| / |w| at its exchanges."""
    figures: dict[str, Any] = {}
    """The figures of its `summary.json`."""
    link_bytes: int | None = None
    """The bytes that were sent over the links, headers included; None without links."""


class Spread(msgspec.Struct, frozen=True):
    """The mean and the range of a figure over the seeds."""

    mean: float
    least: float
    most: float
    count: int


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A contender in the table. A figure is None if no seed has it."""

    contender: str
    trials: int
    failed: int
    accuracy: Spread | None
    """The last accuracy that was reported."""
    best: Spread | None
    accuracy_centre: Spread | None
    reached: int
    """The number of seeds that reached the stated accuracy."""
    seconds_to: Spread | None
    bytes_to: Spread | None
    seconds: Spread | None
    nbytes: Spread | None
    exchanges: Spread | None
    saved: Spread | None
    """The share of the possible exchanges that were saved."""
    bytes_saved: Spread | None
    distance: Spread | None
    staleness: Spread | None


def outcome_of(trial: Trial, result: Result) -> Outcome:
    """Return a trial, read from its files. With links, the bytes of its points are those that crossed the links.

    A trial whose files cannot be read has failed.
    """
    known: dict[str, Any] = {"contender": trial.contender.name, "seed": trial.seed, "outcome": result.outcome}
    known |= {"reason": result.reason, "seconds": result.seconds}
    try:
        run = read_run(trial.folder)
    except HybridPSError as error:
        return Outcome(**known | {"outcome": FAILED, "reason": result.reason or str(error)})
    points = points_of(run)
    start = points[0].when - points[0].seconds if points else started(run)
    crossed = None
    if result.link_bytes:
        times, nbytes = np.array(result.link_bytes).T
        crossed = int(nbytes[-1])
        points = [point._replace(nbytes=float(np.interp(point.when, times, nbytes))) for point in points]
    curves = (group.distances for group in traffic_of(run))
    distances = [[(when - start, value) for when, value in curve] for curve in curves if curve]
    figures = summarise(run)
    return Outcome(**known, points=points, distances=distances, figures=figures, link_bytes=crossed)


def accuracy_of(point: Point) -> float | None:
    """Return the accuracy of the workers, or that of the centre if the workers report none."""
    return point.centre_accuracy if point.accuracy is None else point.accuracy


def accuracies(outcome: Outcome) -> list[float]:
    """Return the accuracies that a trial reported, in order."""
    return [value for point in outcome.points if (value := accuracy_of(point)) is not None]


def stated_accuracy(outcomes: Sequence[Outcome]) -> float | None:
    """Return the accuracy that all runs reach, except failed ones: the lowest of their best ones; None without any."""
    every = (accuracies(outcome) for outcome in outcomes if outcome.outcome != FAILED)
    return min((max(values) for values in every if values), default=None)


def table(outcomes: Sequence[Outcome], accuracy: float | None) -> list[Row]:
    """Return a row for each contender, in their order."""
    names = list(dict.fromkeys(outcome.contender for outcome in outcomes))
    return [_row(name, [each for each in outcomes if each.contender == name], accuracy) for name in names]


def reached_at(outcome: Outcome, accuracy: float | None) -> Point | None:
    """Return the first point at which a trial has reached an accuracy; None if it has not."""
    if accuracy is None:
        return None
    return next((point for point in outcome.points if (accuracy_of(point) or 0.0) >= accuracy), None)


def spread(values: Iterable[float | None]) -> Spread | None:
    """Return the mean, minimum and maximum of the values that are not None; None if all are."""
    known = [value for value in values if value is not None]
    return Spread(statistics.fmean(known), min(known), max(known), len(known)) if known else None


def _row(name: str, trials: Sequence[Outcome], accuracy: float | None) -> Row:
    done = [trial for trial in trials if trial.outcome != FAILED]
    there = [point for trial in done if (point := reached_at(trial, accuracy))]

    def over(value: Callable[[Outcome], float | None]) -> Spread | None:
        return spread(map(value, done))

    return Row(
        contender=name,
        trials=len(trials),
        failed=len(trials) - len(done),
        accuracy=over(lambda trial: next(reversed(accuracies(trial)), None)),
        best=over(lambda trial: max(accuracies(trial), default=None)),
        accuracy_centre=over(lambda trial: trial.figures.get("accuracy_centre")),
        reached=len(there),
        seconds_to=spread(point.seconds for point in there),
        bytes_to=spread(point.nbytes for point in there if sum(trial_bytes(trial) or 0 for trial in done)),
        seconds=over(lambda trial: trial.points[-1].seconds if trial.points else None),
        nbytes=over(trial_bytes),
        exchanges=over(lambda trial: trial.figures["exchanges"] if _share_saved(trial) is not None else None),
        saved=over(_share_saved),
        bytes_saved=over(lambda trial: trial.figures.get("bytes_saved")),
        distance=over(lambda trial: trial.figures.get("distance")),
        staleness=over(lambda trial: trial.figures.get("staleness")),
    )


def trial_bytes(trial: Outcome) -> float | None:
    """Return the bytes that crossed the links, or the payload by the events; None for a store that writes no events."""
    if trial.link_bytes is not None:
        return trial.link_bytes
    return trial.figures.get("bytes_across_groups") if trial.figures.get("steps") else None


def _share_saved(trial: Outcome) -> float | None:
    """Return the share of exchanges saved; None if no exchange was possible, or none is counted."""
    exchanges, saved = (trial.figures.get(name, 0) for name in ("exchanges", "exchanges_saved"))
    return saved / (exchanges + saved) if exchanges + saved else None
