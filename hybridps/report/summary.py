"""The figures of a run: its size, accuracy, speed and traffic."""

from __future__ import annotations

from typing import Any

from hybridps.events import Closed, Ended, Launched, Planned, Restarted, Slowed
from hybridps.report.points import points_of, started, traffic_of_ranks
from hybridps.report.reading import Run
from hybridps.report.traffic import figures
from hybridps.report.training_file import fraction

_MOST_SLOW = 100
"""The largest number of reports of slow workers in a summary."""


def summarise(run: Run) -> dict[str, Any]:
    """Return the figures of `summary.json`, for a run of any script. Accuracies are shares of all validation images.

    `epochs` is the last epoch that was reported or, if no worker finished, the last one that every reporting worker
    reached. `bytes_within_groups` has only lives that ended in good order, and is None if none did. `accuracy`,
    `accuracy_centre` and `loss` are the last ones reported up to that epoch. A run whose script wrote training files
    has more: see `_of_training`.
    """
    points, plans, closed, traffic = points_of(run), run.last(Planned), run.last(Closed), traffic_of_ranks(run)
    reported = points[-1].epoch if points else None
    launched = run.launch.last(Launched) if run.launch else None
    ended = run.launch.last(Ended) if run.launch else None

    def latest(field: str) -> float | None:
        return next((value for point in reversed(points) if (value := getattr(point, field)) is not None), None)

    summary = {
        "algorithm": run.algorithm(),
        "groups": max((plan.groups for plan in plans), default=launched.groups if launched else 1),
        "workers": run.expected,
        "servers": max((len(plan.servers) for plan in plans), default=launched.servers if launched else 0),
        "epochs": _whole(reported) if reported is not None else 0,
        "accuracy": latest("accuracy"),
        "accuracy_centre": latest("centre_accuracy"),
        "loss": latest("loss"),
        "seconds": _seconds(run),
        "bytes_within_groups": sum(event.bytes_within_group for event in closed) if closed or not run.ranks else None,
        "bytes_to_servers": sum(rank.bytes_to_servers for rank in traffic if rank.has_servers),
    }
    summary |= figures([rank for rank in traffic if rank.is_leader])
    summary |= _of_training(run, reported) if run.workers else {}
    summary |= {"finished": run.finished(), "lost": run.lost()}
    restarts = [event for event in run.launch.events if isinstance(event, Restarted)] if run.launch else []
    if restarts:
        summary["restarts"] = [{"group": each.group, "life": each.life, "status": each.status} for each in restarts]
    if slow := _slow(run):
        summary["slow"] = slow
    return summary | ({"status": ended.status} if ended else {})


def _slow(run: Run) -> list[dict[str, Any]]:
    """Return who was reported as slow: workers within a group by their leader, and groups by the launcher."""
    leaders = [rank for rank in run.ranks if (plan := rank.last(Planned)) and plan.group_rank == 0]
    events = [
        event
        for rank in [*leaders, *([run.launch] if run.launch else [])]
        for event in rank.events
        if isinstance(event, Slowed)
    ]
    return [
        ({"worker": event.worker} if event.group is None else {"group": event.group})
        | {"step": event.steps, "factor": round(event.factor, 2), "reason": event.reason}
        for event in events[:_MOST_SLOW]
    ]


def _of_training(run: Run, reported: float | None) -> dict[str, Any]:
    """Return what only training files have: the workers' speed, and top-1 and top-5 of the last epoch that all have.

    `reported`: the last epoch that was reported; later ones do not count.
    """
    judged = [run.workers[number] for number in run.finished()] or list(run.workers.values())
    epochs = set.intersection(*(set(worker.epochs) for worker in judged))
    known = sorted(epoch for epoch in epochs if reported is None or epoch <= reported)
    validated = [epoch for epoch in known if all(worker.epochs[epoch].get("val_images") for worker in judged)]
    lines = [worker.epochs[validated[-1]] for worker in judged] if validated else []
    top1 = fraction(lines, "val_top1_correct")
    return {
        "top1": top1,
        "top5": fraction(lines, "val_top5_correct"),
        "top1_centre": fraction(lines, "centre_top1_correct") if run.has_centre() else None,
        "images_per_second": sum(worker.images_per_second() for worker in judged),
        "seconds": max((worker.seconds() for worker in judged), default=0.0),
    }


def _whole(epoch: float) -> float:
    return int(epoch) if epoch == int(epoch) else epoch


def _seconds(run: Run) -> float:
    """Return the seconds from the start of the workers to the last event."""
    known = [*run.ranks, *run.reports, *([run.launch] if run.launch else [])]
    last = max((rank.times[-1] for rank in known if rank.times), default=0.0)
    return max(0.0, last - started(run))
