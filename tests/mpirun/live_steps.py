"""Trains a model of nothing on NumPy, with an own part of a step that waits or computes. A script of the tests.

`live_steps.py STEPS MILLISECONDS WAY [FOLDER]`: from step `AT` on the last worker takes longer. It `waits` four times
as long, `computes` twice as long, is `stopped` half of the time, its cores are `shared` with another process, it
`stalls` in every eighth step, `hangs`, or `fails`; with `even` it does not. With a FOLDER the workers go on until it
has a file `enough`.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

from hybridps import report_progress
from hybridps.job import open_job
from hybridps.step import ArrayModel, roll

AT = 30


def compute(seconds: float) -> None:
    """Use so much of the CPU."""
    end, values = time.thread_time() + seconds, np.ones(1000)
    while time.thread_time() < end:
        values = values * 1.0


def share_cores() -> None:
    """A child uses the cores of this process, until this process has ended."""
    ours = os.getpid()
    if os.fork():
        return
    while os.getppid() == ours:
        pass
    os._exit(0)


def stop_half_of_the_time(seconds: float) -> None:
    """A child stops this process for so long, lets it go on for so long, and so on."""
    ours = os.getpid()
    if os.fork():
        return
    try:
        while os.getppid() == ours:
            os.kill(ours, signal.SIGSTOP)
            time.sleep(seconds)
            os.kill(ours, signal.SIGCONT)
            time.sleep(seconds)
    finally:
        os._exit(0)


def main() -> None:
    steps, seconds, way = int(sys.argv[1]), float(sys.argv[2]) / 1000, sys.argv[3]
    folder = Path(sys.argv[4]) if len(sys.argv) > 4 else None
    if way == "hangs":
        roll.LOOK_SECONDS = 3600.0  # worker 0 waits for a gradient of that step, never for a look that comes before it
    with open_job() as job, ArrayModel(job.algorithm(), job.session, {"w": np.ones(1000, "float32")}) as model:
        is_last = job.worker == job.workers - 1
        step, goes_on = 0, True
        while step < steps or (folder is not None and goes_on):
            slow = is_last and step >= AT
            if slow and step == AT and way == "stopped":
                stop_half_of_the_time(seconds)
            if slow and step == AT and way == "shared":
                share_cores()
            if slow and way == "hangs":
                time.sleep(1000)
            if slow and way == "fails":
                raise ValueError("image 77 is damaged")
            if way in ("waits", "stalls"):
                stalls = slow and step % 8 == 0
                time.sleep(seconds * (4 if slow and way == "waits" else 17 if stalls else 1))
            else:
                compute(seconds * (2 if slow and way == "computes" else 1))
            model.gradients["w"][:] = folder is not None and (folder / "enough").exists()
            model.reduce()
            goes_on = not model.gradients["w"].any()  # the same on all ranks of a group
            step += 1
            if step == 20:
                report_progress(1, 0.5, 0.25, worker=job.worker, step=step)


if __name__ == "__main__":
    main()
