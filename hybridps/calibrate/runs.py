"""Reads the configuration and the measured steps of a run from its events."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from hybridps.algorithms import USUAL
from hybridps.config import Settings
from hybridps.errors import OracleError
from hybridps.events import AlgorithmChosen, Communicated, Configured, Exchanged, Planned
from hybridps.oracle.ssgd.live import Phases, Run
from hybridps.report import Rank, Worker, read_run

_OF_STEPS = ("tau", "bucket_bytes", "chunk_bytes")
"""The settings that determine when a step communicates, and how much."""

_PREDICTED = ("sync", "elastic")
"""The algorithms of which `hybridps.oracle.ssgd.live` has a model."""


def describe(folder: Path) -> tuple[Run, dict[str, Any]]:
    """Return the configuration of a run, and the settings of its training script.

    Raises HybridPSError if the folder does not have the files of such a run, or if its algorithm has no prediction.
    """
    found = read_run(folder)
    if not found.workers:
        raise OracleError(
            f"{folder} has no train-<worker>.jsonl with a line in it: this command needs the files that "
            "examples/imagenet/train.py writes"
        )
    settings = found.workers[min(found.workers)].settings()
    algorithm = next((event.algorithm for event in found.last(AlgorithmChosen)), None)
    if algorithm not in (None, *_PREDICTED):
        raise OracleError(
            f"{folder} trained with the algorithm {algorithm}: this command predicts {' and '.join(_PREDICTED)} alone"
        )
    job = next((event.settings for event in found.last(Configured)), {})
    try:
        known = msgspec.convert({name: job[name] for name in _OF_STEPS if name in job}, Settings)
    except msgspec.ValidationError as error:
        raise OracleError(f"the settings in {folder} cannot be used: {error}") from None
    planned = next(iter(found.last(Planned)), None)
    run = Run(
        workers=found.expected,
        groups=1 if planned is None else planned.groups,
        batch_size=settings["batch_size"],
        elastic="elastic" in (algorithm or str(settings.get("kvstore_type", ""))),
        tau=known.tau or _period(found.ranks),
        bucket_bytes=known.bytes_reduced_at_a_time(bool(planned and planned.is_full)),
    )
    return run, settings


def measure(folder: Path, run: Run) -> Phases:
    """Return the mean over the workers of the median epoch, without the first epoch, which includes the start-up.

    `exposed` is that of the worker that waits least, since the others also wait for that worker.
    """
    found = read_run(folder)
    workers = list(found.workers.values())
    step, loader = (
        _mean(median_step_seconds(worker, field, run.batch_size, _later_epochs(worker)) for worker in workers)
        for field in ("train_seconds", "loader_seconds")
    )
    first = max(line["train_images"] // run.batch_size for worker in workers for line in worker.epochs.values())
    spent = [each for rank in found.ranks if (each := _communicated(rank, first))]
    exposed = min((each.exposed_seconds / each.steps for each in spent), default=0.0)
    communication = _mean((each.group_seconds + each.exchange_seconds) / each.steps for each in spent)
    averages = [event.took_seconds for rank in found.ranks for event in rank.events if isinstance(event, Exchanged)]
    return Phases(step, step - exposed, loader, communication + _mean(averages) / run.tau, exposed)


def median_step_seconds(worker: Worker, field: str, batch_size: int, epochs: Sequence[int]) -> float:
    """Return the seconds of a step in the median one of these epochs, without those that trained no images.

    Raises OracleError if one of them is missing.
    """
    lines = [worker.epochs.get(number, {}) for number in epochs]
    lines = [line for line in lines if line.get("train_images") != 0]
    if not lines or any(line.get(field) is None for line in lines):
        raise OracleError(
            f"train-{worker.number}.jsonl has no epoch with {field}: the run ended too soon, or is an old one; "
            "this command needs the files that examples/imagenet/train.py writes"
        )
    return statistics.median(line[field] * batch_size / line["train_images"] for line in lines)


def _period(ranks: Iterable[Rank]) -> int:
    """Return the median number of steps between two averagings, or `USUAL` if there were fewer than two."""
    averaged = [sorted({each.step for each in rank.events if isinstance(each, Exchanged)}) for rank in ranks]
    periods = [later - before for steps in averaged for before, later in pairwise(steps)]
    return max(1, round(statistics.median(periods))) if periods else USUAL.tau


def _later_epochs(worker: Worker) -> list[int]:
    """Return the epochs without the first one, if there are others."""
    return [number for number in worker.epochs if number > 1] or list(worker.epochs)


def _communicated(rank: Rank, first: int) -> Communicated | None:
    """Return a rank's totals over its steps after the first epoch, or over all steps if there are no later ones."""
    found = [event for event in rank.events if isinstance(event, Communicated)]
    before = next((event for event in found if event.steps >= first), None)
    if before is None or before.steps == found[-1].steps:
        return found[-1] if found else None
    return Communicated(
        *(getattr(found[-1], name) - getattr(before, name) for name in Communicated.__struct_fields__)  # all are sums
    )


def _mean(values: Iterable[float]) -> float:
    values = list(values)
    return sum(values) / len(values) if values else 0.0
