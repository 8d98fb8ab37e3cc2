"""Checkpoints: one directory each, complete or absent, with arrays and JSON.

A directory is written under a temporary name, with the manifest of the files' digests last, and then renamed. A
directory whose files do not match their digests is skipped. Nothing is unpickled, so a directory from somebody else can
be read: at worst, it has other weights.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
import time
import zipfile
import zlib
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
import trainer_states
from averaging import MovingAverage
from mxnet import gluon

MANIFEST, WEIGHTS, STATES, AVERAGE = "manifest.json", "model.params", "states.npz", "average.params"
MOST_UNSUMMED = 20
"""How many more checkpoints are kept while other groups are epochs behind, so that accuracies are not known."""

BEST = "best"
"""A link to the checkpoint with the best top-1 accuracy."""
NAME = re.compile(r"epoch-(\d{4,9})(?:-step-(\d{6,9}))?")


class DamagedError(Exception):
    """The directory is not a complete checkpoint. The message says what is wrong with it."""


class WriteError(Exception):
    """A checkpoint could not be written. The message says why. Earlier checkpoints are unchanged."""


@dataclass(frozen=True)
class Position:
    """The position of a training run: it has done `epoch` epochs, and `step` steps of the next one.

    `loss_sum` is the sum of the losses of these steps, on the worker that wrote it. `order` says in words what the
    order of the images depends on: in another order, the same steps have other images.
    """

    epoch: int
    step: int = 0
    loss_sum: float = 0.0
    order: str = ""


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint.

    `optimizer` is the name of the optimizer whose states it has, after `updates` updates; None if it has no states.
    `averaged` is the number of steps in the moving average.
    """

    folder: Path
    position: Position
    written_at: float
    optimizer: str | None
    updates: int
    averaged: int


def save(
    folder: Path,
    position: Position,
    net: gluon.Block,
    trainer: gluon.Trainer | None,
    settings: dict[str, Any],
    average: MovingAverage | None = None,
) -> Path:
    """Write a directory in `folder`: the weights of `net`, the states of `trainer` and an `average`, if they are given.

    Its name is epoch-<epoch>, and within an epoch epoch-<epoch>-step-<step>. Returns its path. Raises WriteError, for
    example if the disk is full. Earlier checkpoints stay, and the incomplete one is removed.
    """
    final = folder / (f"epoch-{position.epoch:04d}" + (f"-step-{position.step:06d}" if position.step else ""))
    partial = folder / f".{final.name}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    mx.nd.waitall()  # so that errors of the training are not taken for errors of the disk
    try:
        partial.mkdir(parents=True)
        _save_weights(partial / WEIGHTS, net)
        if average is not None:
            _save_weights(partial / AVERAGE, average.net)
        _write(partial, position, trainer, settings, average.steps if average else 0)
        shutil.rmtree(final, ignore_errors=True)
        os.rename(partial, final)
        _sync(folder)
    except (OSError, mx.MXNetError) as error:
        shutil.rmtree(partial, ignore_errors=True)
        incomplete = "MXNet did not write all of the weights; the disk may be full"
        reason = incomplete if isinstance(error, mx.MXNetError) else _reason(error)
        raise WriteError(f"{final} cannot be written: {reason}") from None
    return final


def _save_weights(path: Path, net: gluon.Block) -> None:
    net.save_parameters(str(path))
    mx.nd.load(str(path))  # MXNet closes a file without noticing that the disk is full


def _write(
    folder: Path, position: Position, trainer: gluon.Trainer | None, settings: dict[str, Any], averaged: int
) -> None:
    manifest: dict[str, Any] = asdict(position) | {"written_at": time.time(), "settings": settings}
    manifest["averaged"] = averaged
    if trainer is not None:
        states = BytesIO()
        np.savez(states, **trainer_states.arrays_of(trainer))
        (folder / STATES).write_bytes(states.getbuffer())
        manifest |= {
            "optimizer": trainer_states.optimizer_name(trainer),
            "updates": int(trainer.optimizer.num_update),
        }
    manifest["sha256"] = {path.name: _digest(path) for path in sorted(folder.iterdir())}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1))
    for path in (*folder.iterdir(), folder):
        _sync(path)


def prune(folder: Path, position: Position, keep: int, summed: int) -> None:
    """Remove checkpoints that are not needed after that of `position`, except the best one.

    These are the checkpoints more than `keep` epochs before it, and those within epochs that came before it. Later
    ones, from an earlier run, stay. So do up to `MOST_UNSUMMED` of the epochs after `summed`, the latest one whose
    accuracy is known: one of them may be the best.
    """
    best = (folder / BEST).resolve().name
    for path in folder.glob("epoch-*"):
        match = NAME.fullmatch(path.name)
        if match is None or path.name == best:
            continue
        epoch, step = int(match[1]), int(match[2] or 0)
        may_be_best = not step and epoch > max(summed, position.epoch - keep - MOST_UNSUMMED)
        is_old = epoch <= position.epoch - keep and not may_be_best
        if is_old or (step and (epoch, step) < (position.epoch, position.step)):
            shutil.rmtree(path, ignore_errors=True)


def check(folder: Path) -> Checkpoint:
    """Return the checkpoint in a directory. Raises DamagedError, also if it has a file that checkpoints do not have."""
    try:
        for path in sorted(folder.iterdir()):
            if path.name not in (MANIFEST, WEIGHTS, STATES, AVERAGE) or not path.is_file():
                raise DamagedError(
                    f"{path} is not a file of a checkpoint, which has only arrays and JSON: it is not read"
                )
        manifest = json.loads((folder / MANIFEST).read_text())
        optimizer = manifest.get("optimizer")
        if set(manifest["sha256"]) - {AVERAGE} != {WEIGHTS} | ({STATES} if optimizer is not None else set()):
            raise DamagedError(f"{folder / MANIFEST} lists other files than a checkpoint has")
        for name, digest in manifest["sha256"].items():
            if _digest(folder / name) != digest:
                raise DamagedError(f"{folder / name} differs from what was written")
        position = _position(manifest, folder)
        written_at, updates = float(manifest["written_at"]), manifest.get("updates", 0)
        averaged = manifest.get("averaged", updates)  # earlier versions counted the optimizer's updates alone
        if not (_is_count(updates) and _is_count(averaged) and math.isfinite(written_at)):
            raise DamagedError(f"{folder / MANIFEST} has an invalid time or number of updates")
        if not (optimizer is None or (isinstance(optimizer, str) and optimizer.isidentifier())):
            raise DamagedError(f"{folder / MANIFEST} has an invalid name of an optimizer")
        return Checkpoint(folder, position, written_at, optimizer, updates, averaged)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise DamagedError(f"{folder}: {error}") from None


def newest(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """Return the complete checkpoint that was written last, and what is wrong with those that were skipped.

    `folder` is a checkpoint, a folder of checkpoints, or a run folder.
    """
    found, problems = [], []
    for path in _candidates(folder):
        try:
            found.append(check(path))
        except DamagedError as damage:
            problems.append(str(damage))
    return max(found, key=lambda checkpoint: checkpoint.written_at, default=None), problems


def load_weights(path: Path, net: gluon.Block, devices: list[mx.Context]) -> None:
    """Load the weights in a file into `net`. Raises DamagedError if they do not fit this network."""
    try:
        net.load_parameters(str(path), ctx=devices)
    except (AssertionError, AttributeError, KeyError, OSError, TypeError, ValueError, mx.MXNetError) as error:
        raise DamagedError(f"{path}: {_reason(error)}") from None


def load_states(found: Checkpoint, trainer: gluon.Trainer) -> None:
    """Load the optimizer's states into `trainer`. Raises DamagedError or StatesError if they do not fit it."""
    path = found.folder / STATES
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = dict(file)
    except (OSError, ValueError, TypeError, EOFError, KeyError, zipfile.BadZipFile, zlib.error, MemoryError) as error:
        raise DamagedError(f"{path} is not a file of arrays: {error}") from None
    trainer_states.restore(trainer, arrays, found.updates)


def _position(manifest: dict[str, Any], folder: Path) -> Position:
    """Return the position in a manifest. Checkpoints of earlier versions have only the epoch, and are at its end."""
    epoch, step, order = manifest["epoch"], manifest.get("step", 0), manifest.get("order", "")
    loss_sum = float(manifest.get("loss_sum", 0.0))
    if not (_is_count(epoch) and _is_count(step) and isinstance(order, str) and order.isprintable()):
        raise DamagedError(f"{folder / MANIFEST} has an invalid epoch, step or order of images")
    return Position(epoch, step, loss_sum, order)


def _reason(error: Exception) -> str:
    """Return what went wrong, in one line. In MXNet's errors it is the last line, below a traceback."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    told = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return told[-1 if isinstance(error, mx.MXNetError) else 0]


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and 0 <= value < 1 << 31


def _candidates(folder: Path) -> list[Path]:
    if (folder / MANIFEST).exists():
        return [folder]
    inner = folder / "checkpoints"
    return sorted(path for path in (inner if inner.is_dir() else folder).glob("epoch-*") if path.is_dir())


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while part := file.read(1 << 20):
            digest.update(part)
    return digest.hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
