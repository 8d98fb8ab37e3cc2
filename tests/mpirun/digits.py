"""Softmax regression on the digits with NumPy: a script that `hybridps compare` can train in a second."""

import os
import sys

import numpy as np
from digits_data import TRAINED, shares, shuffled

from hybridps import report_progress
from hybridps.job import open_job
from hybridps.step import ArrayModel

EPOCHS = int(os.environ.get("DIGITS_EPOCHS", "5"))
BATCH, RATE = 10, 0.5

seed = int(os.environ["COMPARE_SEED"])
if sys.argv[1:] != [str(seed)]:
    sys.exit(f"the command says seed {sys.argv[1:]}, and COMPARE_SEED {seed}")
images, labels = shuffled(seed)
held_out, truth = images[TRAINED:], labels[TRAINED:].argmax(axis=1)


with open_job() as job, ArrayModel(job.algorithm(), job.session, {"weight": np.zeros((65, 10), "float32")}) as model:
    weight, mine = model.weights["weight"], np.arange(job.worker, TRAINED, job.workers)
    report_progress(0, worker=job.worker)
    for epoch in range(1, EPOCHS + 1):
        losses = []
        for batch in np.split(mine, range(BATCH, len(mine), BATCH)):
            found = shares(images[batch], weight)
            losses.append(-np.log((found * labels[batch]).sum(axis=1) + 1e-9).mean())
            model.gradients["weight"][:] = images[batch].T @ (found - labels[batch]) / BATCH
            model.reduce()
            weight -= RATE / job.workers * model.gradients["weight"]
        right = (shares(held_out, weight).argmax(axis=1) == truth).mean()
        report_progress(epoch, right, np.mean(losses), worker=job.worker, images=len(truth))
