"""Measures steps of a training script in short runs without a store: one copy, or several at once on these cores."""

from __future__ import annotations

import os
import statistics
import subprocess
from collections.abc import Sequence
from pathlib import Path

import msgspec

from hybridps.errors import OracleError
from hybridps.report import read_worker

EPOCHS = 5
"""The first epoch includes the start-up; in the last one, copies that have finished leave their cores to the others."""

RUN_SECONDS = 600


class Steps(msgspec.Struct, frozen=True):
    """Mean over the copies of the median epoch, without the first and the last epoch."""

    batch_size: int
    step_seconds: float
    loader_seconds: float


def measure_steps(command: Sequence[str], copies: int, batch_size: int, batches: int, folder: Path) -> Steps:
    """Run several copies of a script that has the options of examples/imagenet/train.py.

    Each copy has as many threads as a worker of a job. Raises OracleError if one fails.
    """
    threads = max(1, len(os.sched_getaffinity(0)) // copies)
    environment = os.environ | {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads))}
    options = ["--kvstore", "none", "--batch-size", str(batch_size), "--max-batches", str(batches)]
    options += ["--epochs", str(EPOCHS), "--val-every", str(EPOCHS + 1)]
    runs = [folder / f"{copies}-{batch_size}-{number}" for number in range(copies)]
    started = [_start([*command, *options, "--run", str(run)], environment, run) for run in runs]
    try:
        statuses = [process.wait(RUN_SECONDS) for process in started]
    except subprocess.TimeoutExpired:
        raise OracleError(f"{' '.join(command)} with a batch of {batch_size} took over {RUN_SECONDS} s") from None
    finally:
        for process in started:
            process.kill()
            process.wait()
    for status, run in zip(statuses, runs, strict=True):
        if status:
            said = (run / "output.txt").read_text().strip().splitlines()[-1:]
            raise OracleError(f"{' '.join(command)} ended with status {status}: {' '.join(said)}")
    steps = [_read(run, batch_size) for run in runs]
    return Steps(
        batch_size,
        sum(each.step_seconds for each in steps) / copies,
        sum(each.loader_seconds for each in steps) / copies,
    )


def _start(command: Sequence[str], environment: dict[str, str], run: Path) -> subprocess.Popen[bytes]:
    run.mkdir(parents=True)
    with (run / "output.txt").open("wb") as output:
        return subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )


def _read(run: Path, batch_size: int) -> Steps:
    worker = read_worker(0, run / "train-0.jsonl")
    epochs = [line for number, line in worker.epochs.items() if 1 < number < EPOCHS and "loader_seconds" in line]
    if len(epochs) < EPOCHS - 2:
        raise OracleError(
            f"{run}/train-0.jsonl has not {EPOCHS} epochs with loader_seconds: is the script as the example?"
        )
    step, loader = (
        statistics.median(line[name] * batch_size / line["train_images"] for line in epochs)
        for name in ("train_seconds", "loader_seconds")
    )
    return Steps(batch_size, step, loader)
