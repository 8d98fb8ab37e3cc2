"""Elastic training that goes on until a file is there: FOLDER [stays]. Each worker writes what it finds to FOLDER/told.

Groups leave when they are told to; with `stays` they do not.
"""

import sys
import time
from pathlib import Path

import numpy as np

from hybridps import leaving, report_progress, resume
from hybridps.job import open_job
from hybridps.step import ArrayModel

folder, back = Path(sys.argv[1]), resume()
with open_job() as job, ArrayModel(job.algorithm(), job.session, {"weight": np.zeros(64, "float32")}) as model:
    weight, begins = model.weights["weight"], float(model.weights["weight"][0])
    with (folder / "told").open("a") as file:
        file.write(f"{job.worker} {back.life} {back.epoch:g} {back.step} {begins:.3f}\n")
    step = 0
    while not (folder / "end").exists() and not (folder / f"end-{job.session.place.group}").exists():
        model.gradients["weight"][:] = 1
        model.reduce()
        weight += 1
        step += 1
        if step == 20:
            report_progress(1, worker=job.worker, step=step)
            (folder / f"reported-{job.worker}").touch()
        if leaving() and sys.argv[2:] != ["stays"]:
            break
        (folder / f"workers-{job.worker}").write_text(str(job.workers))
        time.sleep(0.005)
    (folder / f"done-{job.worker}").write_text(f"{weight[0]}")
