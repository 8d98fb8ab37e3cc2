"""NumPy: softmax regression without a framework. Each worker computes gradients, and hybridps combines them."""

import numpy as np
from digits import TRAINED, load

from hybridps import report_progress
from hybridps.job import open_job
from hybridps.step import ArrayModel

BATCH, EPOCHS, RATE = 16, 4, 0.5
images, labels = load()
images, wanted = images.reshape(-1, 64), np.eye(10, dtype="float32")[labels]

with open_job() as job, ArrayModel(job.algorithm(), job.session, {"weight": np.zeros((64, 10), "float32")}) as model:
    weight = model.weights["weight"]
    for epoch in range(1, EPOCHS + 1):
        for step in range(TRAINED // (BATCH * job.workers)):
            start = (step * job.workers + job.worker) * BATCH  # this worker's images
            batch = slice(start, start + BATCH)
            powers = np.exp(images[batch] @ weight)
            error = powers / powers.sum(axis=1, keepdims=True) - wanted[batch]
            model.gradients["weight"][:] = images[batch].T @ error / BATCH
            model.reduce()  # the sums over all workers
            weight -= RATE / job.workers * model.gradients["weight"]
        right = (images[TRAINED:] @ weight).argmax(axis=1) == labels[TRAINED:]
        report_progress(epoch, right.mean(), worker=job.worker)
