"""Reads a training file: what one worker's script wrote about its training, in `train-<worker>.jsonl`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from hybridps.events import Count

Line = dict[str, Any]


class _TrainingSettings(msgspec.Struct):
    """The settings of a training script that the report reads."""

    workers: Count | None = None


class _TrainingLine(msgspec.Struct):
    """The fields of a training file's line that the report reads. A script may write more."""

    first_epoch: int | None = None
    started_at: float | None = None
    settings: _TrainingSettings | None = None
    epoch: int | None = None
    seconds: float | None = None
    images_per_second: float | None = None
    loss: float | None = None
    val_images: Annotated[int, msgspec.Meta(ge=0)] | None = None
    val_top1_correct: float | None = None
    val_top5_correct: float | None = None
    centre_top1_correct: float | None = None


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
        """Return the mean over the epochs. The first one includes the start-up, and is left out if there are others."""
        rates = [epoch.get("images_per_second") or 0.0 for _, epoch in sorted(self.epochs.items())]
        return float(np.mean(rates[1:] or rates)) if rates else 0.0

    def seconds(self) -> float:
        lines = [self.end] if self.end else list(self.epochs.values())
        return max((float(line.get("seconds") or 0.0) for line in lines), default=0.0)


def read_worker(number: int, path: Path) -> Worker:
    """Read one training file. A run from the first epoch on replaces earlier lines; a resumed run adds to them."""
    run: Line = {}
    epochs: dict[int, Line] = {}
    end = None
    for line in filter(_is_sound, lines_of(path)):
        if line.get("event") == "run":
            first = line.get("first_epoch") or 0
            run, end = line, None
            epochs = {epoch: fields for epoch, fields in epochs.items() if epoch <= first}
        elif line.get("event") == "epoch" and line.get("epoch") is not None:
            epochs[line["epoch"]] = line
        elif line.get("event") == "end":
            end = line
    return Worker(number, run, epochs, end)


def mean_loss(lines: list[Line]) -> float | None:
    """Return the mean of the training losses in these lines; None if no line has one."""
    losses = [line["loss"] for line in lines if line.get("loss") is not None]
    return float(np.mean(losses)) if losses else None


def fraction(lines: list[Line], key: str) -> float | None:
    """Return the sum of `key` divided by the validation images, over the lines that have both; None if no line has."""
    counted = [line for line in lines if line.get(key) is not None and line.get("val_images")]
    images = sum(line["val_images"] for line in counted)
    return sum(line[key] for line in counted) / images if images else None


def lines_of(path: Path) -> Iterator[Line]:
    """Yield the JSON objects of a file. Lines that a killed process left half written are skipped."""
    for text in path.read_bytes().splitlines():
        try:
            line = msgspec.json.decode(text)
        except msgspec.DecodeError:
            continue
        if isinstance(line, dict):
            yield line


def _is_sound(line: Line) -> bool:
    """Return whether a line of a training file has numbers where the report computes with them."""
    try:
        msgspec.convert(line, _TrainingLine)
    except msgspec.ValidationError:
        return False
    return True
