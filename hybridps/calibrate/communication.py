"""Measures the communication of a step, on every rank of a separate job.

    hybridps run -n 4 --groups 2 -- python -m hybridps.calibrate.communication FILE

The operations and the memory are those of training: the KVStore's sum of gradients, bucket by bucket, and the average
of weights with the centre.
"""

from __future__ import annotations

import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
from msgspec.structs import replace

from hybridps.algorithms import reduce_all_
from hybridps.config import Settings, load_settings
from hybridps.job import Job, open_job
from hybridps.memory import Arena, Layout
from hybridps.oracle.machines import fit_line
from hybridps.oracle.machines.calibration import Operation
from hybridps.tensor_collectives import Tensor

SIZES_BYTES = (1 << 20, 4 << 20, 16 << 20, 48 << 20)
ROUNDS = 5
MATRIX = 384


def main(path: str) -> None:
    """Measure on all ranks. The first worker writes the result to `path`."""
    with open_job(read_settings) as job:
        found = {"sum": _sum(job)}
        if job.servers:
            found["average"] = _average(job)
        if job.worker == 0:
            Path(path).write_bytes(msgspec.json.encode(found))


def _sum(job: Job) -> Operation:
    """Measure the sum of a step's gradients over all workers."""
    algorithm = job.algorithm("sync")

    def of_size(size: int) -> Callable[[], None]:
        layout = _layout(size)
        tensor = algorithm.levels.tensor(layout.length, layout.dtype)
        algorithm.join_gradients(f"sum.{size}", layout)
        bucket = job.session.settings.bytes_reduced_at_a_time(job.session.is_full) // layout.itemsize
        return lambda: reduce_all_(algorithm, f"sum.{size}", tensor, bucket)

    return _measure(job, of_size)


def _average(job: Job) -> Operation:
    """Measure the average of all groups' weights with the centre."""
    algorithm = job.algorithm("elastic")

    def of_size(size: int) -> Callable[[], None]:
        layout = _layout(size)
        weights = Tensor([Arena(layout).flat])
        algorithm.join_weights(f"average.{size}", layout, weights)

        def average() -> None:
            algorithm.average_(f"average.{size}", weights, step=1)

        return average

    return _measure(job, of_size)


def read_settings() -> Settings:
    """Read the settings of the job, but average in every step: a trigger could skip some averages, or all."""
    return replace(load_settings(), trigger=None, tau=1)


def _layout(size: int) -> Layout:
    return Layout.of("float32", {"values": (size // 4,)})


def _measure(job: Job, of_size: Callable[[int], Callable[[], None]]) -> Operation:
    """Fit a line to the median seconds of each size.

    `loss` of the result is that of the first worker, at the largest size.
    """
    seconds = []
    for size in SIZES_BYTES:
        work = of_size(size)
        work()
        seconds.append(statistics.median(_repeat(job, work)))
    alone, while_communicating = BackgroundLoad(), BackgroundLoad()
    with alone:
        job.session.group.barrier()
        time.sleep(ROUNDS * seconds[-1] + 0.1)
    with while_communicating:
        loaded = statistics.mean(_repeat(job, work))
    lost = loaded * (1 - while_communicating.per_second / alone.per_second)
    return Operation(fit_line(SIZES_BYTES, seconds, relative=True), min(1.0, max(0.0, lost / seconds[-1])))


def _repeat(job: Job, work: Callable[[], None]) -> list[float]:
    """Return the seconds of several rounds, each of which the ranks of the group start together."""
    seconds = []
    for _ in range(ROUNDS):
        job.session.group.barrier()
        began = time.monotonic()
        work()
        seconds.append(time.monotonic() - began)
    return seconds


class BackgroundLoad:
    """Computation in the background: a thread that multiplies matrices without a pause."""

    def __init__(self) -> None:
        self.per_second = 0.0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *error: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        left, right = (np.ones((MATRIX, MATRIX), np.float32) for _ in range(2))
        out = np.empty_like(left)
        began, count = time.monotonic(), 0
        while not self._stopped.is_set():
            np.dot(left, right, out=out)  # it releases the interpreter lock
            count += 1
        self.per_second = count / (time.monotonic() - began)


if __name__ == "__main__":
    main(sys.argv[1])
