"""Steps of NumPy for test_traces.py: `traced_ranks.py STEPS SLOW [KILLED]`.

Worker SLOW takes 30 ms longer than the others, which it sleeps: a busy machine cannot make up for them. Worker KILLED
kills itself at the last step.
"""

from __future__ import annotations

import os
import signal
import sys
import time

import numpy as np

from hybridps import loading
from hybridps.job import open_job
from hybridps.step import ArrayModel

steps, slow, killed = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else -1
matrix = np.eye(200, dtype="float32")
parameters = {"first": np.zeros((200, 50), "float32"), "second": np.zeros(100, "float32")}

with open_job() as job, ArrayModel(job.algorithm(), job.session, parameters) as model:
    for step in range(steps):
        with loading():
            batch = matrix.copy()
        for _ in range(30):
            batch = batch @ matrix
        if job.worker == slow:
            time.sleep(0.03)
        if job.worker == killed and step == steps - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        for gradient in model.gradients.values():
            gradient[...] = batch.sum()
        model.reduce()
