"""Measures steps of a training script in short runs without a store: one copy, or several at once on these cores."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

from hybridps.calibrate.processes import run_at_once
from hybridps.calibrate.runs import median_step_seconds
from hybridps.errors import OracleError
from hybridps.oracle.machines import fit_line
from hybridps.oracle.machines.calibration import Steps
from hybridps.report import read_worker

EPOCHS = 5
"""The first epoch includes the start-up. In the last one, copies that have finished leave their cores to the others."""

RUN_SECONDS = 600

ATTEMPTS = 3
"""How often steps are measured if other programs disturb them. The shortest time of each batch size counts."""


def measure_steps(command: Sequence[str], copies: int, batch_sizes: Sequence[int], batches: int, folder: Path) -> Steps:
    """Run several copies of a training script with each batch size, and fit the seconds of a step to the batch size.

    The script must have the options of examples/imagenet/train.py. Each copy has as many threads as a worker of a job.
    A time is the mean over the copies of the median epoch. The runs are in `folder`, named COPIES-SIZE-NUMBER. Raises
    OracleError if a run fails, or if steps with larger batches take no longer at the last attempt.
    """
    measured = [(math.inf, math.inf)] * len(batch_sizes)
    for attempt in range(ATTEMPTS):
        there = folder / f"again-{attempt}" if attempt else folder
        again = [_seconds(command, copies, size, batches, there) for size in batch_sizes]
        measured = [*map(min, measured, again)]
        steps, loaders = zip(*measured, strict=True)
        line = fit_line(batch_sizes, steps, relative=True)
        if line.seconds_per_unit > 0:
            break
    else:
        times = ", ".join(f"{size}: {1e3 * step:.0f} ms" for size, step in zip(batch_sizes, steps, strict=True))
        raise OracleError(
            f"larger batches take no longer ({times}): the machine is busy with something else, wait until it is idle"
        )
    return Steps(copies, line, fit_line(batch_sizes, loaders, relative=True))


def _seconds(command: Sequence[str], copies: int, batch_size: int, batches: int, folder: Path) -> tuple[float, float]:
    """Return the seconds of a step, and those of them in which it waits for images."""
    threads = max(1, len(os.sched_getaffinity(0)) // copies)
    options = ["--kvstore", "none", "--batch-size", str(batch_size), "--max-batches", str(batches)]
    options += ["--epochs", str(EPOCHS), "--val-every", str(EPOCHS + 1)]
    runs = [folder / f"{copies}-{batch_size}-{number}" for number in range(copies)]
    commands = [[*command, *options, "--run", str(run)] for run in runs]
    run_at_once(commands, RUN_SECONDS, {"OMP_NUM_THREADS": str(threads)} | os.environ)
    workers = [read_worker(0, run / "train-0.jsonl") for run in runs]
    steps, loaders = (
        mean(median_step_seconds(worker, name, batch_size, range(2, EPOCHS)) for worker in workers)
        for name in ("train_seconds", "loader_seconds")
    )
    return steps, loaders
