"""Sums the figures of all workers for an epoch, from the lines that each of them writes to the run folder.

No worker waits for another one: the worker whose line completes an epoch computes the sums. This works with every
KVStore, even if the workers are in different epochs at the same time. All workers must share the run folder.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from checkpoint import BEST

SUMMED = ("train_images", "images_per_second", "corrupt_images", "val_images")
ENDS = ("_correct", "_loss_sum")

Line = dict[str, Any]
"""The figures of one worker, or of all workers, for an epoch."""


def forget(run: Path, epoch: int) -> None:
    """Remove the sums of an epoch that an earlier run has left, before a worker writes its line of the epoch."""
    _path(run, epoch).unlink(missing_ok=True)


def complete(run: Path, epoch: int, workers: int, lost: int) -> Line | None:
    """Return the sums over all workers but those `lost`, to the worker whose line completes the epoch; else None.

    Raises OSError.
    """
    lines = [line for worker in range(workers) if (line := _line_of(run / f"train-{worker}.jsonl", epoch))]
    if len(lines) < workers - lost:
        return None
    sums = add_up(lines)
    return sums if keep(run, sums) else None


def latest(run: Path) -> int:
    """Return the latest epoch whose sums are known; 0 if there is none."""
    return max((int(path.stem) for path in (run / "epochs").glob("*.json") if path.stem.isdigit()), default=0)


def add_up(lines: list[Line]) -> Line:
    """Return the sums of all counts of images, and the mean loss, of an epoch of these workers."""
    names = [name for name in lines[0] if name in SUMMED or name.endswith(ENDS)]
    images = sum(line["train_images"] for line in lines)
    loss = sum((math.nan if line["loss"] is None else line["loss"]) * line["train_images"] for line in lines)
    sums = {name: sum(line.get(name) or 0 for line in lines) for name in names}
    return {"epoch": lines[0]["epoch"], "workers": len(lines), "loss": loss / max(1, images)} | sums


def keep(run: Path, sums: Line) -> bool:
    """Write the sums to `epochs/`. Return False if another worker that found the epoch complete has. Raises OSError."""
    path = _path(run, sums["epoch"])
    path.parent.mkdir(exist_ok=True)
    try:
        with path.open("x") as file:
            file.write(json.dumps(sums) + "\n")
    except FileExistsError:
        return False
    return True


def are_shared(run: Path, workers: int) -> bool:
    """Return whether the lines of all workers are in this folder."""
    return all((run / f"train-{worker}.jsonl").exists() for worker in range(workers))


def mark_best(run: Path, sums: Line) -> None:
    """Point `checkpoints/best` to the checkpoint of this epoch, unless an earlier one has a better top-1 accuracy.

    The accuracy of the centre counts if there is one, since the checkpoint holds the centre. While workers are away
    there are fewer validation images: accuracies over more workers count before those over fewer. Raises OSError.
    """
    link = run / "checkpoints" / BEST
    new = link.with_name(f"epoch-{sums['epoch']:04d}")
    if not (sums.get("val_images") and new.is_dir()):
        return
    with suppress(OSError, ValueError, KeyError):
        epoch = int(os.readlink(link).removeprefix("epoch-"))
        if link.exists() and epoch < sums["epoch"] and _rank(json.loads(_path(run, epoch).read_text())) > _rank(sums):
            return
    partial = link.with_name(f".{BEST}.{os.getpid()}")
    partial.unlink(missing_ok=True)
    partial.symlink_to(new.name)
    partial.replace(link)


def top1(sums: Line) -> float:
    return sums.get("centre_top1_correct", sums["val_top1_correct"]) / sums["val_images"]


def _rank(sums: Line) -> tuple[int, float]:
    return sums["workers"], top1(sums)


def _path(run: Path, epoch: int) -> Path:
    return run / "epochs" / f"{epoch:04d}.json"


def _line_of(path: Path, epoch: int) -> Line | None:
    """Return the line of an epoch that a worker has written since its last start; None if there is none."""
    found = None
    for line in _lines(path):
        if line.get("event") == "run":
            found = None
        elif line.get("event") == "epoch" and line.get("epoch") == epoch:
            found = line
    return found


def _lines(path: Path) -> Iterator[Line]:
    with suppress(OSError):
        for text in path.read_text(errors="replace").splitlines():
            with suppress(ValueError):
                line = json.loads(text)
                if isinstance(line, dict):
                    yield line
