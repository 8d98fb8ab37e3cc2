"""Continues a training: from which checkpoint, and where in its epoch."""

from __future__ import annotations

import os
from argparse import Namespace
from pathlib import Path

import checkpoint
import mxnet as mx
import options
from averaging import MovingAverage
from checkpoint import Checkpoint, DamagedError, Position
from journal import warn
from mxnet import gluon
from options import UsageError
from trainer_states import StatesError, optimizer_name


def load_weights(args: Namespace, net: gluon.HybridBlock, devices: list[mx.Context], worker: int) -> Checkpoint | None:
    """Load the weights that `--resume` asks for, and return their checkpoint; None to start from the beginning."""
    if args.dry_run:
        return None
    if not args.resume:
        begins = worker == 0 and not options.reached(args) and not os.environ.get("HYBRIDPS_LIFE")
        if begins and any((args.run / "checkpoints").glob("epoch-*")):
            warn(
                f"{args.run} has checkpoints of an earlier training, which this one replaces: to continue it, give "
                "--resume"
            )
        return None
    folder = args.run if args.resume == "auto" else Path(args.resume)
    found, problems = checkpoint.newest(folder)
    for problem in problems if worker == 0 else ():
        print(f"checkpoint skipped: {problem}", flush=True)
    if found is None:
        if args.resume != "auto":
            raise UsageError(f"--resume {args.resume}: there is no complete checkpoint")
        return None
    try:
        checkpoint.load_weights(found.folder / checkpoint.WEIGHTS, net, devices)
    except DamagedError as error:
        raise UsageError(f"--resume: the weights do not fit --network {args.network}: {error}") from None
    if worker == 0:
        print(f"resumed from {found.folder}", flush=True)
    return found


def load_states(
    found: Checkpoint | None, trainer: gluon.Trainer | None, average: MovingAverage | None, devices: list[mx.Context]
) -> None:
    """Load the optimizer's states, with settings from the command line, and the average of the weights."""
    try:
        if found and trainer:
            _load_optimizer(found, trainer)
        path = found.folder / checkpoint.AVERAGE if found else None
        if average and path and path.exists():
            checkpoint.load_weights(path, average.net, devices)
            average.steps = found.averaged
        elif average:
            average.begin()
    except (DamagedError, StatesError) as error:
        raise UsageError(f"--resume {found.folder}: {error}") from None


def _load_optimizer(found: Checkpoint, trainer: gluon.Trainer) -> None:
    if found.optimizer is None:
        raise UsageError(f"{found.folder} has no optimizer states: resume with a store that updates, as before")
    if found.optimizer != optimizer_name(trainer):
        raise UsageError(f"{found.folder} has the states of another optimizer: use --optimizer {found.optimizer}")
    checkpoint.load_states(found, trainer)


def start(args: Namespace, found: Checkpoint | None, order: str, worker: int) -> Position:
    """Return where the training begins: at the checkpoint, or where the job is when this worker's group is restarted.

    It begins within an epoch only if the images come in the same order as when the checkpoint was written, and not if
    this group comes in among others, which do so before an epoch.
    """
    reached = options.reached(args)
    if found is None or found.position.epoch < reached or os.environ.get("HYBRIDPS_REJOINS"):
        return Position(reached)
    position = found.position
    if position.step and position.order != order:
        if worker == 0:
            warn(
                f"epoch {position.epoch + 1} starts over: its images had another order when {found.folder} was "
                f"written: {position.order}; now: {order}"
            )
        return Position(position.epoch)
    return position
