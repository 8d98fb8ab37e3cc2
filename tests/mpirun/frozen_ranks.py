"""Trains for 20 steps: `frozen_ranks.py ALGORITHM FOLDER WORKER HOW`. In step 5 of its first life that worker does HOW.

`stop`: it is stopped, and FOLDER/stopped has its process id. `back`: the same, and others wait in step 12 until its
group is back. `busy`: it computes for a while, with Python's lock. `hang`: it sleeps for an hour, and there is
no barrier at the end. All wait in step 8 until it has begun. Each worker writes its weights to FOLDER/done-WORKER-LIFE.
"""

import ctypes
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

from hybridps import resume
from hybridps.job import open_job
from hybridps.memory import Layout
from hybridps.ps.rules import SGD

LAYOUT = Layout.of("float32", {"w": (64,)})
name, folder, victim, how = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]


def disturb() -> None:
    (folder / "new").write_text(str(os.getpid()))
    (folder / "new").rename(folder / "stopped")
    if how == "hang":
        time.sleep(3600)
    elif how != "busy":
        os.kill(os.getpid(), signal.SIGSTOP)
    else:
        ctypes.PyDLL(None).usleep(3_000_000)


with open_job() as job:
    algorithm = job.algorithm(rule=SGD(rate=1.0) if name in ("async", "stale") else None)
    weights, gradients = (algorithm.levels.tensor(LAYOUT.length, "float32") for _ in range(2))
    flat, life = weights.vectors[0], resume().life
    algorithm.initialise("model", LAYOUT, weights)
    algorithm.join_gradients("model", LAYOUT)
    algorithm.join_weights("model", LAYOUT, weights, receives=algorithm.updates and algorithm.keeps_gradients)
    if life:
        (folder / "back").touch()
    for step in range(20):
        if algorithm.averages(step):
            algorithm.average_("model", weights, step)
        gradients.vectors[0][:] = job.worker + step
        algorithm.finish_(algorithm.reduce_("model", gradients, 0, LAYOUT.length))
        if not algorithm.updates:
            flat -= gradients.vectors[0]
        elif not algorithm.keeps_gradients:
            np.copyto(flat, gradients.vectors[0])
        if step == 5 and job.worker == victim and not life:
            disturb()
        while (step == 8 and not (folder / "stopped").exists()) or (
            step == 12 and how == "back" and not (folder / "back").exists()
        ):
            time.sleep(0.01)
    if name == "gossip":
        algorithm.settle_("model", weights)
    if how != "hang":
        algorithm.barrier()
    (folder / f"done-{job.worker}-{life}").write_text(str(flat[0]))
