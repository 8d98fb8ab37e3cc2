"""Checkpoints: one directory an epoch, complete or absent.

A directory is written under a temporary name, its manifest with the digests of the files last, and then
renamed. A directory whose files do not have these digests is passed over.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mxnet import gluon

WEIGHTS, STATES = "model.params", "trainer.states"


class DamagedError(Exception):
    """The directory is not a complete checkpoint. The message says what is wrong with it."""


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint after `epoch` epochs."""

    folder: Path
    epoch: int
    written_at: float


def save(folder: Path, epoch: int, net: gluon.Block, trainer: gluon.Trainer | None, settings: dict[str, Any]) -> Path:
    """Write `folder`/epoch-<epoch>: the weights of `net`, and the optimizer's states, if a trainer has them."""
    final = folder / f"epoch-{epoch:04d}"
    partial = folder / f".{final.name}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    net.save_parameters(str(partial / WEIGHTS))
    if trainer is not None:
        trainer.save_states(str(partial / STATES))
    digests = {path.name: _digest(path) for path in sorted(partial.iterdir())}
    manifest = {"epoch": epoch, "written_at": time.time(), "sha256": digests, "settings": settings}
    (partial / "manifest.json").write_text(json.dumps(manifest, indent=1))
    for path in (*partial.iterdir(), partial):
        _sync(path)
    shutil.rmtree(final, ignore_errors=True)
    os.rename(partial, final)
    _sync(folder)
    return final


def prune(folder: Path, epoch: int, keep: int) -> None:
    """Remove the checkpoints more than `keep` epochs before `epoch`. Later ones, of an earlier run, stay."""
    for path in folder.glob("epoch-*"):
        number = path.name.removeprefix("epoch-")
        if number.isdigit() and int(number) <= epoch - keep:
            shutil.rmtree(path, ignore_errors=True)


def check(folder: Path) -> Checkpoint:
    """The checkpoint in a directory. Raises DamagedError."""
    try:
        manifest = json.loads((folder / "manifest.json").read_text())
        for name, digest in manifest["sha256"].items():
            if _digest(folder / name) != digest:
                raise DamagedError(f"{folder / name} differs from what was written")
        return Checkpoint(folder, manifest["epoch"], manifest["written_at"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedError(f"{folder}: {error}") from None


def newest(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """The checkpoint written last that is complete, and what is wrong with those passed over.

    `folder` is a checkpoint, or a folder of checkpoints, or a run folder.
    """
    found, problems = [], []
    for path in _candidates(folder):
        try:
            found.append(check(path))
        except DamagedError as damage:
            problems.append(str(damage))
    return max(found, key=lambda checkpoint: checkpoint.written_at, default=None), problems


def _candidates(folder: Path) -> list[Path]:
    if (folder / "manifest.json").exists():
        return [folder]
    inner = folder / "checkpoints"
    return sorted((inner if inner.is_dir() else folder).glob("epoch-*"))


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
