"""A worker of the chaos benchmark: trains a small network on the digits until the file `end` is in its folder.

    hybridps run ... -- python -m benchmarks.chaos.digits_worker FOLDER ALGORITHM

While the folder has a file `pause`, groups wait as of the step that is in the file.

It records each step in the folder (`records`). The leader of a group writes the group's final figures
(`end-GROUP.json`). A group that is started again takes the weights from the servers and continues.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

from benchmarks.chaos.chains import digest
from benchmarks.chaos.records import Place, Writer
from hybridps import report_progress, resume
from hybridps.algorithms import Algorithm
from hybridps.job import Job, open_job
from hybridps.memory import Arena, Layout
from hybridps.ps.rules import SGD, Momentum, Rule
from hybridps.tensor_collectives import Tensor

HIDDEN, BATCH, TRAINED = 256, 32, 1440
RATE, MOMENTUM, DECAY = 0.02, 0.9, 1e-3
"""The decay keeps gradients from becoming zero, however long the training takes."""
EPOCH = TRAINED // BATCH
STEPS_BETWEEN_LOOKS = 10
PAUSE_LOOK_SECONDS = 0.01
ENDS, TRAINS, PAUSES = range(3)
LAYOUT = Layout.of("float32", {"first": (65, HIDDEN), "second": (HIDDEN + 1, 10)})
TABLE = "model"


class Digits:
    """The images, and a network of two layers with its gradient."""

    def __init__(self) -> None:
        digits = load_digits()
        order = np.random.default_rng(0).permutation(len(digits.target))
        images = digits.data[order] / 16
        self.images = np.hstack([images, np.ones((len(order), 1))]).astype("float32")
        self.labels = np.eye(10, dtype="float32")[digits.target[order]]

    def initial(self, flat: np.ndarray) -> None:
        """Write the initial weights."""
        weights, chance = Arena(LAYOUT, flat), np.random.default_rng(1)
        for name in ("first", "second"):
            view = weights.view(name)
            view[:] = chance.standard_normal(view.shape) / np.sqrt(len(view))

    def forward(self, flat: np.ndarray, chosen: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return the values of the hidden layer and of the output for these images."""
        weights = Arena(LAYOUT, flat)
        hidden = np.tanh(self.images[chosen] @ weights.view("first"))
        hidden = np.hstack([hidden, np.ones((len(hidden), 1), "float32")])
        powers = hidden @ weights.view("second")
        powers = np.exp(powers - powers.max(axis=1, keepdims=True))
        return hidden, powers / powers.sum(axis=1, keepdims=True)

    def gradient(self, flat: np.ndarray, chosen: np.ndarray, out: np.ndarray) -> None:
        """Write the mean gradient of these images to `out`."""
        hidden, found = self.forward(flat, chosen)
        weights, gradients = Arena(LAYOUT, flat), Arena(LAYOUT, out)
        error = (found - self.labels[chosen]) / len(chosen)
        gradients.view("second")[:] = hidden.T @ error
        inner = (error @ weights.view("second")[:-1].T) * (1 - hidden[:, :-1] ** 2)
        gradients.view("first")[:] = self.images[chosen].T @ inner
        out += np.float32(DECAY) * flat

    def accuracy(self, flat: np.ndarray) -> float:
        """Return the accuracy on the held-out images."""
        held_out = slice(TRAINED, None)
        right = self.forward(flat, held_out)[1].argmax(axis=1) == self.labels[held_out].argmax(axis=1)
        return float(right.mean())


def end_file(folder: Path) -> Path:
    """Return the file that ends the training in a folder."""
    return folder / "end"


def pause_file(folder: Path) -> Path:
    """Return the file that pauses the training in a folder."""
    return folder / "pause"


def ask_to_pause(folder: Path, step: int) -> None:
    """Pause the training in a folder, after `step` steps of each group or soon after that."""
    asked = folder / "pause.part"
    asked.write_text(str(step))
    asked.rename(pause_file(folder))


def told(folder: Path, step: int) -> int:
    """Return what a group that has done `step` steps does now."""
    if end_file(folder).exists():
        return ENDS
    try:
        return PAUSES if step >= int(pause_file(folder).read_text()) else TRAINS
    except FileNotFoundError:
        return TRAINS


def rule_of(name: str, job: Job) -> Rule | None:
    """Return the rule of the servers; None if workers update."""
    if name == "sync-server":
        return Momentum(rate=RATE / job.workers, momentum=MOMENTUM)
    return SGD(rate=RATE / job.session.group.size) if name == "async" else None


def step_(algorithm: Algorithm, weights: Tensor, gradients: Tensor, velocity: np.ndarray, workers: int) -> None:
    """Sum the gradients, and update the weights by them, here or at the servers."""
    flat = weights.vectors[0]
    algorithm.finish_(algorithm.reduce_(TABLE, gradients, 0, LAYOUT.length))
    if not algorithm.updates:
        velocity *= np.float32(MOMENTUM)
        velocity -= np.float32(RATE / workers) * gradients.vectors[0]
        flat += velocity
    elif not algorithm.keeps_gradients:
        np.copyto(flat, gradients.vectors[0])


def pin(worker: int) -> None:
    """Keep the threads of this process on one core: that of the worker's number, modulo the number of cores.

    Where the scheduler places ranks changes the speed by up to 20 % for seconds, if there are more ranks than cores.
    """
    cores = sorted(os.sched_getaffinity(0))
    for thread in os.listdir("/proc/self/task"):
        with suppress(ProcessLookupError):  # it may have ended
            os.sched_setaffinity(int(thread), {cores[worker % len(cores)]})


def main(folder: Path, name: str) -> None:
    """Train until the file `end` is there."""
    digits, back = Digits(), resume()
    with open_job() as job:
        algorithm = job.algorithm(rule=rule_of(name, job))
        weights, gradients = (algorithm.levels.tensor(LAYOUT.length, "float32") for _ in range(2))
        flat, velocity = weights.vectors[0], np.zeros(LAYOUT.length, "float32")
        digits.initial(flat)
        algorithm.initialise(TABLE, LAYOUT, weights)
        algorithm.join_gradients(TABLE, LAYOUT)
        algorithm.join_weights(TABLE, LAYOUT, weights, receives=algorithm.updates and algorithm.keeps_gradients)
        place = Place(job.session.place.group, job.session.place.group_rank, back.life)
        pin(job.worker)
        writer, step, does = Writer(folder, place), back.step, np.full(1, TRAINS)
        while does[0] != ENDS:
            if algorithm.averages(step):
                algorithm.average_(TABLE, weights, step)
            chance = np.random.default_rng((job.worker, step))
            digits.gradient(flat, chance.integers(0, TRAINED, BATCH), gradients.vectors[0])
            step_(algorithm, weights, gradients, velocity, job.workers)
            step += 1
            writer.write(time.monotonic(), step, digest(flat) if name == "sync-server" else 0)
            if step % STEPS_BETWEEN_LOOKS == 0:
                does[0] = told(folder, step)
                job.session.group.broadcast_(does)
                while does[0] == PAUSES and pause_file(folder).exists():
                    time.sleep(PAUSE_LOOK_SECONDS)
            if step % EPOCH == 0 and place.rank == 0:
                report_progress(step // EPOCH, worker=job.worker, step=step)
        writer.close()
        finish(folder, digits, algorithm, flat, place)


def finish(folder: Path, digits: Digits, algorithm: Algorithm, flat: np.ndarray, place: Place) -> None:
    """Write the final figures of a group."""
    centre = algorithm.levels.tensor(LAYOUT.length, "float32")
    algorithm.read_centre(TABLE, centre)
    there = centre.vectors[0]
    if place.rank == 0:
        found = {
            "accuracy": digits.accuracy(flat),
            "centre_accuracy": digits.accuracy(there),
            "distance": float(np.linalg.norm(flat - there) / np.linalg.norm(there)),
        }
        (folder / f"end-{place.group}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
