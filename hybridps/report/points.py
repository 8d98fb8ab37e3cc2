"""The quality of a run's model over time, epochs and traffic, as its script reported it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from hybridps.events import Closed, Ended, Evaluated, Failed, Launched, Planned, Restarted
from hybridps.progress import mean_of
from hybridps.report.reading import Run, began
from hybridps.report.traffic import GroupTraffic

Report = tuple[float, Evaluated]
"""The time of a report, in seconds since 1970, and its contents."""


class Start(NamedTuple):
    """The moment from which the `seconds` of a run count, in its summary and in its pictures."""

    when: float
    """Seconds since 1970; 0 if it is not known."""
    moment: str
    """What happened then, in words."""


class Point(NamedTuple):
    """The model after an epoch: the mean over all workers that reported it, at the time of the last report."""

    epoch: float
    seconds: float
    """Seconds since training began."""
    nbytes: float
    """The payload bytes that had crossed between the groups by then."""
    accuracy: float | None
    centre_accuracy: float | None
    loss: float | None
    when: float
    """Seconds since 1970."""

    @property
    def says_nothing(self) -> bool:
        """Whether the report of the epoch had no figures of the model."""
        return self.accuracy is None and self.centre_accuracy is None and self.loss is None


def points_of(run: Run) -> list[Point]:
    """Return a point for each epoch that was reported, in order, also by earlier launches that this one continues.

    A launch continues an earlier one of its folder if its first epoch is after the earlier one's first. Their seconds
    and bytes add up, up to the last epoch that is continued.
    """
    points = _points(run)
    for earlier in reversed(run.earlier):
        before = _points(earlier)
        first, only_a_place = (points[0].epoch, points[0].says_nothing) if points else (0.0, False)
        continued = [point for point in before if point.epoch < first or (only_a_place and point.epoch == first)]
        if any(point.epoch > 0 for point in continued):
            last = continued[-1]
            points = continued + [_after(last, point) for point in points if point.epoch > last.epoch]
        elif before:
            break  # this launch began anew
    return points


def _points(run: Run) -> list[Point]:
    """Return the points of one launch. Seconds count from the report of epoch 0, or else from the workers' start."""
    reports = _latest(run)
    begun = reports.get(0.0, [])
    start = max((when for when, _ in begun), default=started(run))
    groups = traffic_of(run)
    return [_point(epoch, reports[epoch], start, groups) for epoch in _whole_epochs(run, reports)]


def _after(last: Point, point: Point) -> Point:
    return point._replace(seconds=last.seconds + point.seconds, nbytes=last.nbytes + point.nbytes)


def traffic_of(run: Run) -> list[GroupTraffic]:
    """Return the traffic of each group."""
    return [traffic for traffic in traffic_of_ranks(run) if traffic.is_leader]


def traffic_of_ranks(run: Run) -> list[GroupTraffic]:
    """Return the traffic of each rank."""
    every, reached = [], _reached(run)
    for rank in run.ranks:
        traffic = GroupTraffic()
        for event, when in zip(rank.events, rank.times, strict=True):
            traffic.add(event, when)
        if traffic.group in reached:
            traffic.reach(*reached[traffic.group])
        every.append(traffic)
    return every


def _reached(run: Run) -> dict[int, tuple[int, float]]:
    """Return the step that each group has reached in its last life, and when: events come too seldom for the last steps
    of a rank that was killed. No worker of a group has done a step that another one has not begun.

    What others said of themselves before a worker failed may be out of date, unless they did no steps any more.
    """
    known: dict[int, list[tuple[int, float]]] = {}
    earlier: dict[int, list[tuple[int, float]]] = {}
    for rank in run.ranks:
        if (plan := rank.last(Planned)) is None or rank.last(Closed):
            continue
        failed = [(event.steps, when) for event, when in rank.last_life if isinstance(event, Failed)]
        if failed:
            known.setdefault(plan.group, []).append(failed[-1])
        elif (status := rank.status) is not None:
            said = known if status.is_still else earlier
            said.setdefault(plan.group, []).append((status.steps, status.began_step_at))
    return {group: min(steps) for group, steps in (earlier | known).items()}


def started(run: Run) -> float:
    """Return when the workers of a run started, in seconds since 1970; 0 if that is not known."""
    for rank in [run.launch] if run.launch else []:
        for event, when in zip(rank.events, rank.times, strict=True):
            if isinstance(event, Launched):
                return when
    starts = [began(rank) for rank in [*run.ranks, *run.reports]]
    starts += [float(worker.run.get("started_at") or 0.0) for worker in run.workers.values()]
    return min(filter(None, starts), default=0.0)


def start_of(run: Run) -> Start:
    """Return the moment from which `seconds` count: where training files begin, or else the start of the workers."""
    begun = [float(worker.run.get("started_at") or 0.0) for worker in run.workers.values()]
    if any(begun):
        return Start(min(filter(None, begun)), "training began")
    return Start(started(run), "the workers started")


def _latest(run: Run) -> dict[float, list[Report]]:
    """Return what each worker last reported of each epoch, at the time of its last report."""
    found: dict[float, dict[tuple[int | None, int | None], Report]] = {}
    for when, event in _reports(run):
        reports, worker = found.setdefault(event.epoch, {}), (event.group, event.worker)
        _, before = reports.get(worker, (when, event))
        reports[worker] = (when, before.followed_by(event))
    return {epoch: list(reports.values()) for epoch, reports in found.items()}


def _whole_epochs(run: Run, reports: Mapping[float, Sequence[Report]]) -> list[float]:
    """Return the epochs in order. If the run ended early, the last ones that not all reached are left out."""
    epochs = sorted(reports)
    ended = run.launch.last(Ended) if run.launch else None
    came_to_its_end = bool(run.finished()) or (ended is not None and ended.status == 0)
    most = max(map(len, reports.values()), default=0)
    while epochs and not came_to_its_end and len(reports[epochs[-1]]) < most:
        epochs.pop()
    return epochs


def _point(epoch: float, reports: Sequence[Report], start: float, groups: list[GroupTraffic]) -> Point:
    when, events = max(when for when, _ in reports), [event for _, event in reports]
    nbytes = sum(group.bytes_at(when, start) for group in groups)
    accuracy, centre, loss = (mean_of(events, field) for field in ("accuracy", "centre_accuracy", "loss"))
    return Point(epoch, when - start, nbytes, accuracy, centre, loss, when)


def _reports(run: Run) -> Iterator[Report]:
    """Yield each report with its time: those of the launcher and of progress files, or else those of training files."""
    found: list[Report] = []
    earlier: dict[int | None, set[tuple[float, int | None]]] = {}
    """The epochs and workers that restarted groups had reported in their earlier lives. These reports count."""
    for rank in [*([run.launch] if run.launch else []), *run.reports]:
        for event, when in zip(rank.events, rank.times, strict=True):
            if isinstance(event, Restarted):
                if event.anew:
                    found.clear()
                earlier[event.group] = {(each.epoch, each.worker) for _, each in found if each.group == event.group}
            elif isinstance(event, Evaluated) and (event.epoch, event.worker) not in earlier.get(event.group, ()):
                found.append((when, event))
    if found:
        yield from found
        return
    for worker in run.workers.values():
        start = float(worker.run.get("started_at") or 0.0)
        for epoch, line in worker.epochs.items():
            images = line.get("val_images") or None
            shares = {
                field: line[key] / images
                for field, key in (("accuracy", "val_top1_correct"), ("centre_accuracy", "centre_top1_correct"))
                if images and line.get(key) is not None
            }
            event = Evaluated(epoch, loss=line.get("loss"), images=images, worker=worker.number, **shares)
            yield start + float(line.get("seconds") or 0.0), event
