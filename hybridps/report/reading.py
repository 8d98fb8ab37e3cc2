"""Reads a run folder: what each worker and each rank wrote there.

The training script writes `train-<worker>.jsonl` (events `run`, `epoch`, `end`), and this package writes
`hybridps-<rank>.jsonl` (see events.py). A restarted worker appends to its file.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np

from hybridps.errors import HybridPSError
from hybridps.events import Closed, Communicated, Configured, Exchanged, Planned

Known = Configured | Planned | Communicated | Exchanged | Closed
KnownT = TypeVar("KnownT", Configured, Planned, Communicated, Exchanged, Closed)
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
    """The events that one rank of the package wrote since it was last configured."""

    events: list[Known]

    def last(self, kind: type[KnownT]) -> KnownT | None:
        return next((event for event in reversed(self.events) if isinstance(event, kind)), None)


@dataclass(frozen=True)
class Run:
    """The contents of a run folder."""

    workers: dict[int, Worker]
    ranks: list[Rank]
    expected: int

    def last(self, kind: type[KnownT]) -> list[KnownT]:
        """The last event of this kind of each rank that has one."""
        return [event for rank in self.ranks if (event := rank.last(kind))]

    def algorithm(self) -> str:
        """Name of the algorithm, from the settings of the job, or else from the type of the KVStore."""
        named = [event.settings.get("algorithm") for event in self.last(Configured)]
        told = [worker.settings() for worker in self.workers.values()]
        named += [settings.get("kvstore_type") or settings.get("kvstore") for settings in told]
        return str(next(filter(None, named), "unknown")).removeprefix("dist_hybridps_")

    def has_centre(self) -> bool:
        """Whether the run trained a centre variable, as Elastic SGD does."""
        lines = (line for worker in self.workers.values() for line in worker.epochs.values())
        return "elastic" in self.algorithm() or any(line.get("centre_top1_correct") is not None for line in lines)

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
    expected = _expected(workers)
    workers = {number: worker for number, worker in workers.items() if number < expected}
    ranks = [read_rank(path) for _, path in _numbered(folder, "hybridps-")]
    return Run(
        workers, [rank for rank in ranks if not (plan := rank.last(Planned)) or plan.worker < expected], expected
    )


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
    """Read one event file from its last `Configured` event on. Events that are not `Known` are skipped."""
    events: list[Known] = []
    for line in _lines(path):
        with suppress(msgspec.ValidationError):
            event = msgspec.convert(line, Known)
            if isinstance(event, Configured):
                events.clear()
            events.append(event)
    return Rank(events)


def mean_loss(lines: list[Line]) -> float | None:
    """Mean of the training losses in these lines; None if no line has one."""
    losses = [line["loss"] for line in lines if line.get("loss") is not None]
    return float(np.mean(losses)) if losses else None


def fraction(lines: list[Line], key: str) -> float | None:
    """Sum of `key` divided by the validation images, over the lines that have both; None if no line has."""
    counted = [line for line in lines if line.get(key) is not None and line.get("val_images")]
    images = sum(line["val_images"] for line in counted)
    return sum(line[key] for line in counted) / images if images else None


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
