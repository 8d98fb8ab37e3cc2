"""A script whose groups train in step, and hand over what a restarted group needs. Words: a folder, what updates, the
group that is killed, the optimizer. With `checkpoint`, the servers update, and each worker begins with what it has
saved last.

Each worker prints its weights after each epoch. `alone` computes what all workers together should reach.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

from hybridps import resume

EPOCHS, STEPS, IMAGES = 7, 10, 8
DIES = (1, 4)
"""The epoch and the step after which the worker is killed."""


def network(seed: int) -> gluon.nn.HybridSequential:
    mx.random.seed(seed)
    net = gluon.nn.HybridSequential()
    with net.name_scope():  # without kinks, where rounding would change a gradient
        net.add(gluon.nn.Dense(16, activation="tanh"), gluon.nn.BatchNorm(), gluon.nn.Dense(3))
    net.initialize(mx.init.Xavier())
    return net


def optimizer(name: str) -> mx.optimizer.Optimizer:
    schedule = mx.lr_scheduler.FactorScheduler(step=15, factor=0.8, base_lr=0.05)
    # Without epsilon, Adam makes a step of full size from the rounding of a gradient that is 0, as before BatchNorm.
    own = {"sgd": {"momentum": 0.9}, "adam": {"epsilon": 1e-3}}.get(name, {})
    return mx.optimizer.create(name, learning_rate=0.05, lr_scheduler=schedule, wd=1e-3, **own)


def batch(worker: int, epoch: int, step: int) -> tuple[mx.nd.NDArray, mx.nd.NDArray]:
    random = np.random.default_rng((worker, epoch, step))
    return mx.nd.array(random.normal(size=(IMAGES, 5))), mx.nd.array(random.integers(0, 3, IMAGES))


def backward(net: gluon.nn.HybridSequential, x: mx.nd.NDArray, y: mx.nd.NDArray) -> None:
    with autograd.record():
        loss = gluon.loss.SoftmaxCrossEntropyLoss()(net(x), y)
    loss.backward()


def trained(net: gluon.nn.HybridSequential) -> Iterator[gluon.Parameter]:
    return (parameter for parameter in net.collect_params().values() if parameter.grad_req != "null")


def weights_of(net: gluon.nn.HybridSequential) -> np.ndarray:
    return np.concatenate([parameter.data().asnumpy().ravel() for parameter in trained(net)]).astype("f4")


def alone(workers: int, victims: list[int], back: int, name: str) -> Iterator[np.ndarray]:
    """Train as all workers together do: the weights after each epoch.

    `victims` die after step `DIES`, and are back from epoch `back` on.
    """
    net = network(1)
    net(batch(0, 0, 0)[0])
    updater = mx.optimizer.get_updater(optimizer(name))
    updater.optimizer.rescale_grad = 1 / (IMAGES * workers)
    for epoch in range(EPOCHS):
        for step in range(STEPS):
            there = [each for each in range(workers) if each not in victims or (epoch, step) <= DIES or epoch >= back]
            summed = [mx.nd.zeros(parameter.shape) for parameter in trained(net)]
            for worker in there:
                backward(net, *batch(worker, epoch, step))
                for total, parameter in zip(summed, trained(net), strict=True):
                    total += parameter.grad()
            for index, (total, parameter) in enumerate(zip(summed, trained(net), strict=True)):
                updater(index, total, parameter.data())
        yield weights_of(net)


def together(folder: Path, updates: str, victim: int, name: str) -> None:
    kv = mx.kv.create("dist_hybridps_sync")
    group, life = int(os.environ["HYBRIDPS_GROUP_INDEX"]), resume().life
    net = network(1 + 100 * life)
    on_store = updates != "workers"
    trainer = gluon.Trainer(net.collect_params(), optimizer(name), kvstore=kv, update_on_kvstore=on_store)
    weights, states = (str(folder / f"{kind}{kv.rank}") for kind in ("weights", "states"))
    if os.path.exists(states):
        net.load_parameters(weights)
        trainer.load_states(states)
    kv.barrier()  # a group that rejoins meets nobody here
    if life:
        (folder / "back").touch()
    for epoch in kv.epochs(EPOCHS, trainer):
        for step in range(STEPS):
            backward(net, *batch(kv.rank, epoch, step))
            trainer.step(IMAGES * kv.num_workers)
            if group == victim and not life and (epoch, step) == DIES:
                mx.nd.waitall()
                os.kill(os.getpid(), signal.SIGKILL)
        print(f"worker {kv.rank} in life {life}: epoch {epoch} {weights_of(net).tobytes().hex()}", flush=True)
        if updates == "checkpoint":
            net.save_parameters(weights)
            trainer.save_states(states)
        end = time.monotonic() + 60
        while group != victim and epoch == 2 and not (folder / "back").exists() and time.monotonic() < end:
            time.sleep(0.1)
        if group != victim and 2 <= epoch < EPOCHS - 2:
            time.sleep(1.0)  # at one of these ends of epochs the restarted group has come to the meeting
    kv.barrier()


if __name__ == "__main__":
    together(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4])
