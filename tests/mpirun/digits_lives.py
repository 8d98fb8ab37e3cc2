"""Softmax regression on the digits, in groups that die and are started again: FOLDER WHAT.

WHAT: `back`: group 1 dies in epoch 3, and the others wait there until it is back. `alone`: they wait in epoch 5, and it
goes on when they have come to their end. `first`: group 0 dies in epoch 3, and the others wait until that is known.
`anew`: group 1 dies there, the others wait in epoch 5 until they are stopped, and all go on from the newest checkpoint.
`never`: nobody dies.

Each worker writes a line for each of its lives to FOLDER/lives; the first worker that lives writes FOLDER/epoch-E.npy.
"""

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
from digits_data import TRAINED, shares, shuffled

from hybridps import report_progress, resume
from hybridps.job import Job, open_job
from hybridps.step import ArrayModel

EPOCHS, BATCH, RATE = 6, 10, 0.5
FATAL = 3
"""The epoch in which a worker dies."""

folder, what = Path(sys.argv[1]), sys.argv[2]
dies = {"back": 1, "alone": 1, "first": 0, "anew": 1}.get(what)
images, labels = shuffled(0)
held_out, truth = images[TRAINED:], labels[TRAINED:].argmax(axis=1)


def lives_first(job: Job) -> bool:
    """Whether no worker before this one lives. A group whose processes have ended counts as silent at once."""
    silent = job.silent_workers(600) if job.worker else []
    return all(worker in silent for worker in range(job.worker))


def wait_for(condition) -> None:  # type: ignore[no-untyped-def]
    end = time.monotonic() + 40
    while not condition():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.05)


def newest() -> tuple[int, np.ndarray]:
    """The newest checkpoint: its epoch, and its weights."""
    found = max((int(path.stem.partition("-")[2]) for path in folder.glob("epoch-*.npy")), default=0)
    return found, np.load(folder / f"epoch-{found}.npy") if found else np.zeros((65, 10), "float32")


back = resume()
done, initial = newest() if what == "anew" and back.life else (int(back.epoch), np.zeros((65, 10), "float32"))
with open_job() as job, ArrayModel(job.algorithm(), job.session, {"weight": initial}) as model:
    group, weight, mine = job.session.place.group, model.weights["weight"], np.arange(job.worker, TRAINED, job.workers)
    begins = (shares(held_out, weight).argmax(axis=1) == truth).mean()
    with (folder / "lives").open("a") as file:
        file.write(f"{job.worker} {back.life} {back.epoch:g} {back.step} {done} {begins:.3f}\n")
    wait_for(lambda: len((folder / "lives").read_text().splitlines()) >= job.workers)  # else one may be at its end
    if what == "alone" and back.life:
        wait_for((folder / f"epoch-{EPOCHS}.npy").exists)
    for epoch in range(done + 1, EPOCHS + 1):
        for number, batch in enumerate(np.split(mine, range(BATCH, len(mine), BATCH))):
            if epoch == FATAL and number == 10 and group == dies and not back.life:
                os.kill(os.getpid(), signal.SIGKILL)
            if epoch == FATAL and number == 10 and what == "back" and group != dies:
                wait_for(lambda: f"{dies} 1 " in (folder / "lives").read_text())
            if epoch == FATAL + 2 and what == "alone" and group != dies:
                wait_for(lambda: f"{dies} 1 " in (folder / "lives").read_text())
            if epoch == FATAL + 2 and what == "anew" and not back.life:
                wait_for(lambda: False)  # until it is stopped
            if epoch == FATAL and number == 10 and what == "first" and group != dies:
                wait_for(lambda: dies in job.silent_workers(600))
            model.gradients["weight"][:] = images[batch].T @ (shares(images[batch], weight) - labels[batch]) / BATCH
            model.reduce()
            weight -= RATE / job.workers * model.gradients["weight"]
        right = (shares(held_out, weight).argmax(axis=1) == truth).mean()
        report_progress(epoch, right, worker=job.worker, step=epoch * len(mine) // BATCH)
        if lives_first(job):
            np.save(folder / "new.npy", weight)
            (folder / "new.npy").rename(folder / f"epoch-{epoch}.npy")
