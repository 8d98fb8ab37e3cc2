"""Reads the configuration and the measured steps of a run from its events."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from hybridps.config import Settings
from hybridps.errors import OracleError
from hybridps.events import Communicated, Configured, Exchanged, Planned
from hybridps.oracle.ssgd import Phases, Run
from hybridps.report import Worker, read_run

_OF_STEPS = ("tau", "bucket_bytes", "chunk_bytes")
"""Settings that determine when a step communicates, and how much."""

Known = Configured | Planned | Communicated | Exchanged


def describe(folder: Path) -> tuple[Run, dict[str, Any]]:
    """The configuration of a run, and the settings of its training script. Raises HybridPSError for another folder."""
    found = read_run(folder)
    settings = found.workers[min(found.workers)].settings()
    events = [event for _, event in _events(folder)]
    job = next((event.settings for event in events if isinstance(event, Configured)), {})
    groups = next((event.groups for event in events if isinstance(event, Planned)), 1)
    try:
        known = msgspec.convert({name: job[name] for name in _OF_STEPS if name in job}, Settings)
    except msgspec.ValidationError as error:
        raise OracleError(f"the settings that {folder} tells are none: {error}") from None
    elastic = "elastic" in str(settings.get("kvstore_type", ""))
    run = Run(
        workers=found.expected,
        groups=groups,
        batch_size=settings["batch_size"],
        elastic=elastic,
        tau=known.tau,
        bucket_bytes=known.bytes_reduced_at_a_time,
    )
    return run, settings


def measure(folder: Path, run: Run) -> Phases:
    """The median epoch without the first one, which includes the start-up; the mean over the workers.

    `exposed` is that of the worker that waits least, since the others also wait for that worker.
    """
    workers = list(read_run(folder).workers.values())
    step = _mean([_per_step(worker, "train_seconds", run.batch_size) for worker in workers])
    loader = _mean([_per_step(worker, "loader_seconds", run.batch_size) for worker in workers])
    first = max(_steps_an_epoch(worker, run.batch_size) for worker in workers)
    sums = [_communicated(folder, rank, first) for rank in {rank for rank, _ in _events(folder)}]
    spent = [each for each in sums if each is not None]
    exposed = min((each.exposed_seconds / each.steps for each in spent), default=0.0)
    communication = _mean([(each.group_seconds + each.exchange_seconds) / each.steps for each in spent])
    return Phases(step, step - exposed, loader, communication + _averaging(folder, run), exposed)


def _communicated(folder: Path, rank: str, first: int) -> Communicated | None:
    """The sums of a rank over its steps after the first epoch, or over all steps if there are no later ones."""
    found = [event for who, event in _events(folder) if who == rank and isinstance(event, Communicated)]
    if not found:
        return None
    last = found[-1]
    before = next((event for event in found if event.steps >= first), None)
    if before is None or before.steps == last.steps:
        return last
    return Communicated(
        *(getattr(last, name) - getattr(before, name) for name in Communicated.__struct_fields__)  # all are sums
    )


def _averaging(folder: Path, run: Run) -> float:
    """Seconds per step for averaging with the centre every tau steps."""
    took = [event.took_seconds for _, event in _events(folder) if isinstance(event, Exchanged)]
    return _mean(took) / run.tau


def _per_step(worker: Worker, field: str, batch_size: int) -> float:
    epochs = [line for number, line in sorted(worker.epochs.items()) if number > 1] or list(worker.epochs.values())
    if not epochs or any(line.get(field) is None for line in epochs):
        raise OracleError(
            f"train-{worker.number}.jsonl has no epoch with {field}: the run ended too soon, or is an old one"
        )
    return statistics.median(line[field] * batch_size / line["train_images"] for line in epochs)


def _steps_an_epoch(worker: Worker, batch_size: int) -> int:
    return max(line["train_images"] // batch_size for line in worker.epochs.values())


def _events(folder: Path) -> Iterator[tuple[str, Known]]:
    """The events of known types of all ranks, since their last start."""
    for path in sorted(folder.glob("hybridps-*.jsonl")):
        found: list[Known] = []
        for line in path.read_text(errors="replace").splitlines():
            try:
                event = msgspec.convert(json.loads(line), Known)
            except (ValueError, msgspec.ValidationError):
                continue
            found = [event] if isinstance(event, Configured) else [*found, event]
        yield from ((path.stem, event) for event in found)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0
