"""Reads a run folder: what each worker and each rank wrote there.

The training script writes `train-<worker>.jsonl` (events `run`, `epoch`, `end`), and this package writes
`hybridps-<rank>.jsonl` (see events.py). A restarted worker appends to its file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from hybridps.errors import HybridPSError
from hybridps.events import Closed, Configured, Exchanged, Noted, Planned, Registered

AnyEvent = Configured | Planned | Registered | Exchanged | Noted | Closed
Line = dict[str, Any]


@dataclass(frozen=True)
class Worker:
    """What one worker wrote about its training since its last fresh start."""

    number: int
    run: Line
    epochs: dict[int, Line]
    end: Line | None

    def settings(self) -> Line:
        found = self.run.get("settings")
        return found if isinstance(found, dict) else {}

    def images_per_second(self) -> float:
        """Mean over the epochs, without the first one, which includes the start-up, if there are several."""
        rates = [epoch["images_per_second"] for _, epoch in sorted(self.epochs.items())]
        return float(np.mean(rates[1:] or rates)) if rates else 0.0

    def seconds(self) -> float:
        lines = [self.end] if self.end else list(self.epochs.values())
        return max((float(line.get("seconds") or 0.0) for line in lines), default=0.0)


@dataclass(frozen=True)
class Rank:
    """What one rank of the package wrote since it was last configured."""

    configured: Configured | None = None
    planned: Planned | None = None
    closed: Closed | None = None


@dataclass(frozen=True)
class Run:
    """The contents of a run folder."""

    workers: dict[int, Worker]
    ranks: dict[int, Rank]
    expected: int
    groups: dict[int, int] = field(default_factory=dict)
    """The group of each worker whose group is known."""

    def finished(self) -> list[int]:
        return [number for number, worker in sorted(self.workers.items()) if worker.end]

    def lost(self) -> list[int]:
        return sorted((set(range(self.expected)) | set(self.workers)) - set(self.finished()))


def read_run(folder: Path) -> Run:
    """Read the files of all workers and ranks. Raises HybridPSError if no worker wrote anything."""
    workers = {number: read_worker(number, path) for number, path in _numbered(folder, "train-")}
    workers = {number: worker for number, worker in workers.items() if worker.run or worker.epochs}
    if not workers:
        raise HybridPSError(f"{folder} has no train-<worker>.jsonl with a line in it: is it the folder of a run?")
    ranks = {number: read_rank(path) for number, path in _numbered(folder, "hybridps-")}
    expected = _expected(workers)
    workers = {number: worker for number, worker in workers.items() if number < expected}
    ranks = {number: rank for number, rank in ranks.items() if not rank.planned or rank.planned.worker < expected}
    plans = [rank.planned for rank in ranks.values() if rank.planned]
    return Run(workers, ranks, expected, {plan.worker: plan.group for plan in plans if plan.worker >= 0})


def read_worker(number: int, path: Path) -> Worker:
    """Read one training file. A run from the first epoch on replaces earlier lines; a resumed run adds to them."""
    run: Line = {}
    epochs: dict[int, Line] = {}
    end = None
    for line in _lines(path):
        if line.get("event") == "run":
            first = line.get("first_epoch") or 0
            run, end = line, None
            epochs = {epoch: fields for epoch, fields in epochs.items() if epoch <= first}
        elif line.get("event") == "epoch" and isinstance(line.get("epoch"), int):
            epochs[line["epoch"]] = line
        elif line.get("event") == "end":
            end = line
    return Worker(number, run, epochs, end)


def read_rank(path: Path) -> Rank:
    """Read one event file from its last `Configured` event on. Unknown events are skipped."""
    rank = Rank()
    for line in _lines(path):
        try:
            event = msgspec.convert(line, AnyEvent)
        except msgspec.ValidationError:
            continue
        if isinstance(event, Configured):
            rank = Rank(configured=event)
        elif isinstance(event, Planned):
            rank = Rank(rank.configured, event, rank.closed)
        elif isinstance(event, Closed):
            rank = Rank(rank.configured, rank.planned, event)
    return rank


def _expected(workers: dict[int, Worker]) -> int:
    """Number of workers, as the worker that started last reports it: an earlier run in the folder may have had more."""
    newest = max(workers.values(), key=lambda worker: worker.run.get("started_at") or 0.0)
    return int(newest.settings().get("workers") or max(workers) + 1)


def _numbered(folder: Path, prefix: str) -> Iterator[tuple[int, Path]]:
    for path in sorted(folder.glob(f"{prefix}*.jsonl")):
        number = path.stem.removeprefix(prefix)
        if number.isdigit() and path.is_file():
            yield int(number), path


def _lines(path: Path) -> Iterator[Line]:
    """The JSON objects of a file. Lines that a killed process left half written are skipped."""
    for text in path.read_bytes().splitlines():
        try:
            line = msgspec.json.decode(text)
        except msgspec.DecodeError:
            continue
        if isinstance(line, dict):
            yield line
