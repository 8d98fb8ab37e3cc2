"""The summary of a run: its size, accuracy, speed and traffic."""

from __future__ import annotations

from typing import Any

import numpy as np

from hybridps.report.reading import Line, Run, Worker


def summarise(run: Run) -> dict[str, Any]:
    """The figures of `summary.json`. Accuracies are fractions of all validation images, at the last common epoch."""
    judged = [run.workers[number] for number in run.finished()] or list(run.workers.values())
    epochs = _common_epochs(judged)
    last = epochs[-1] if epochs else 0
    validated = [epoch for epoch in epochs if all(worker.epochs[epoch].get("val_images") for worker in judged)]
    lines = [worker.epochs[validated[-1]] for worker in judged] if validated else []
    plans = [rank.planned for rank in run.ranks.values() if rank.planned]
    closed = [rank.closed for rank in run.ranks.values() if rank.closed]
    top1 = fraction(lines, "val_top1_correct")
    return {
        "algorithm": algorithm(run),
        "groups": max((plan.groups for plan in plans), default=1),
        "workers": run.expected,
        "servers": max((len(plan.servers) for plan in plans), default=0),
        "epochs": last,
        "top1": top1,
        "top5": fraction(lines, "val_top5_correct"),
        "top1_centre": fraction(lines, "centre_top1_correct") if has_centre(run) else top1,
        "loss": _loss_of_epoch(judged, last),
        "images_per_second": sum(worker.images_per_second() for worker in judged),
        "seconds": max((worker.seconds() for worker in judged), default=0.0),
        "bytes_within_groups": sum(event.bytes_within_group for event in closed),
        "bytes_to_servers": sum(event.bytes_to_servers for event in closed),
        "finished": run.finished(),
        "lost": run.lost(),
    }


def algorithm(run: Run) -> str:
    """Name of the algorithm, from the settings of the job, or else from the type of the KVStore."""
    for rank in run.ranks.values():
        if rank.configured and rank.configured.settings.get("algorithm"):
            return str(rank.configured.settings["algorithm"])
    store = next((_store(worker) for worker in run.workers.values() if _store(worker)), "unknown")
    return store.removeprefix("dist_hybridps_")


def has_centre(run: Run) -> bool:
    """Whether the run trained a centre variable, as Elastic SGD does."""
    lines = (line for worker in run.workers.values() for line in worker.epochs.values())
    return "elastic" in algorithm(run) or any(line.get("centre_top1_correct") is not None for line in lines)


def mean_loss(lines: list[Line]) -> float | None:
    """Mean of the training losses in these lines; None if no line has one."""
    losses = [line["loss"] for line in lines if line.get("loss") is not None]
    return float(np.mean(losses)) if losses else None


def fraction(lines: list[Line], key: str) -> float | None:
    """Sum of `key` divided by the validation images, over the lines that have both; None if no line has."""
    counted = [line for line in lines if line.get(key) is not None and line.get("val_images")]
    images = sum(line["val_images"] for line in counted)
    return sum(line[key] for line in counted) / images if images else None


def _loss_of_epoch(workers: list[Worker], epoch: int) -> float | None:
    return mean_loss([worker.epochs[epoch] for worker in workers if epoch in worker.epochs])


def _common_epochs(workers: list[Worker]) -> list[int]:
    return sorted(set.intersection(*(set(worker.epochs) for worker in workers))) if workers else []


def _store(worker: Worker) -> str:
    return str(worker.settings().get("kvstore_type") or worker.settings().get("kvstore") or "")
