"""A worker of benchmarks.step: an ordinary Gluon script that trains on one batch again and again, and is timed.

It connects to the benchmark's Unix socket after the untimed steps. Whenever it receives a byte, it does the timed steps
and sends its measurements.
"""

from __future__ import annotations

import socket
import sys
import time
from typing import TYPE_CHECKING

import msgspec
import mxnet as mx
from mxnet import autograd, gluon
from mxnet.gluon.model_zoo import vision

from benchmarks.step_task import Timed, Told

if TYPE_CHECKING:
    from benchmarks.step_trace import Trace

RATE, MOMENTUM = 1e-3, 0.9
CLASSES = 1000


class Training:
    """A network of Gluon's model zoo, and one batch of random images."""

    def __init__(self, told: Told) -> None:
        mx.random.seed(1)
        self.network = vision.get_model(told.network, classes=CLASSES)
        self.network.initialize(mx.init.Xavier())
        self.network.hybridize()
        self.whole_batch = told.batch_size * told.workers
        shape = (told.batch_size, 3, told.image_size, told.image_size)
        self.images = mx.nd.random.uniform(-1, 1, shape)
        self.labels = mx.nd.arange(told.batch_size)
        self.network(self.images).wait_to_read()  # the shapes of the parameters are known from here on
        self.parameters = self.network.collect_params()
        self.loss = gluon.loss.SoftmaxCrossEntropyLoss()
        self.trainer = gluon.Trainer(
            self.parameters,
            "sgd",
            {"learning_rate": RATE, "momentum": MOMENTUM, "wd": 1e-4},
            kvstore=told.kvstore or None,
            update_on_kvstore=told.update_on_kvstore if told.kvstore else None,
        )
        if told.kvstore in ("dist_sync", "dist_device_sync") and not told.update_on_kvstore:
            self._wait_for_first_weights()

    def run(self, steps: int, meeting: socket.socket | None = None) -> None:
        """Run steps. Returns when all of their work is done. `meeting`: where all workers meet after each step."""
        for _ in range(steps):
            with autograd.record():
                loss = self.loss(self.network(self.images), self.labels)
            loss.backward()
            self.trainer.step(self.whole_batch)
            if meeting is not None:
                mx.nd.waitall()
                meeting.sendall(b"!")
                meeting.recv(1)
        mx.nd.waitall()

    def _wait_for_first_weights(self) -> None:
        """Let no worker of MXNet's own store send a gradient before all have the first weights.

        Otherwise a worker that asks late may get the sum of the first gradients (docs/migrating.md).
        """
        begin = self.trainer._init_params

        def begin_together() -> None:
            begin()
            mx.nd.waitall()
            self.trainer._kvstore._barrier()

        self.trainer._init_params = begin_together

    def last_norm(self) -> float:
        *_, last = self.parameters.values()
        return float(last.data().norm().asscalar())

    def parameter_bytes(self) -> int:
        return sum(4 * p.data().size for p in self.parameters.values() if p.grad_req != "null")


def main(told: Told) -> None:
    trace = make_trace() if told.trace else None
    training = Training(told)
    training.run(told.untimed_steps)
    with socket.socket(socket.AF_UNIX) as meeting:
        meeting.connect(told.meeting)
        while meeting.recv(1):  # nothing once the benchmark has ended
            if trace:
                trace.on = True
            began, cpu = time.monotonic(), time.process_time()
            training.run(told.steps, meeting if told.meets else None)
            ended, cpu_ended = time.monotonic(), time.process_time()
            cpu_seconds, traced = cpu_ended - cpu, trace.steps() if trace else []
            done = Timed(began, ended, cpu_seconds, training.last_norm(), training.parameter_bytes(), traced)
            meeting.sendall(msgspec.json.encode(done) + b"\n")


def make_trace() -> Trace:
    """Return a trace of the stores that are made from now on."""
    from benchmarks.step_trace import Trace

    trace = Trace()
    trace.install()
    return trace


if __name__ == "__main__":
    main(msgspec.json.decode(sys.argv[1], type=Told))
