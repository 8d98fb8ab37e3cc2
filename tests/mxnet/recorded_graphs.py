"""Programs that record a graph and compute its gradients only after another step. Run by test_recorded_graphs.py.

Words: programs. All workers have the same data, so that a worker alone under `local` reaches the same weights.
"""

import os
import sys
from collections.abc import Callable

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon, nd

from hybridps.config import world_size

TYPE = os.environ["STORE"]
ON_STORE = os.environ["UPDATE"] == "store"
workers = world_size()

Seen = list[np.ndarray]


def network(seed: int, inputs: int) -> gluon.nn.Dense:
    mx.random.seed(seed)
    net = gluon.nn.Dense(2, in_units=inputs)
    net.initialize(mx.init.Xavier())
    return net


def trainer_of(net: gluon.Block, store: str) -> Callable[[], None]:
    """A step of a Trainer for the network."""
    settings = {"learning_rate": 0.1, "momentum": 0.5}
    on_store = ON_STORE and store != "local"  # a store like MXNet's `local` updates by the same gradient
    trainer = gluon.Trainer(net.collect_params(), "sgd", settings, kvstore=store, update_on_kvstore=on_store)
    return lambda: trainer.step(1 if store == "local" else workers)


def data(step: int) -> nd.NDArray:
    return nd.array(np.random.RandomState(step).randn(4, 3))


def note(seen: Seen, *nets: gluon.Block) -> None:
    seen += [each.data().asnumpy() for net in nets for each in net.collect_params().values()]


def actor_and_critic(store: str) -> Seen:
    """The graph of the actor's loss also reaches the critic, which is updated before that loss is differentiated."""
    seen: Seen = []
    actor, critic = network(1, 3), network(2, 2)
    step_actor, step_critic = trainer_of(actor, store), trainer_of(critic, store)
    for step in range(8):
        with autograd.record():
            of_critic = ((critic(data(step)[:, :2]) - 1) ** 2).mean()
            of_actor = -critic(actor(data(step))).mean()
        of_critic.backward()
        step_critic()
        note(seen, critic)
        of_actor.backward()
        step_actor()
        note(seen, actor)
    return seen


def several_losses(store: str) -> Seen:
    """All losses are recorded before the first step."""
    seen: Seen = []
    for count in (2, 3):
        net = network(3, 3)
        step_net = trainer_of(net, store)
        for step in range(5):
            with autograd.record():
                losses = [(net(data(10 * step + number)) ** 2).mean() for number in range(count)]
            for loss in losses:
                loss.backward()
                step_net()
                note(seen, net)
    return seen


def graph_that_is_kept(store: str) -> Seen:
    """A graph that was recorded before the first step is differentiated in every other one."""
    seen: Seen = []
    net = network(4, 3)
    with autograd.record():
        kept = (net(data(0)) ** 2).mean()
    step_net = trainer_of(net, store)
    for step in range(10):
        if step % 2:
            kept.backward(retain_graph=True)
        else:
            with autograd.record():
                loss = (net(data(step)) ** 2).mean()
            loss.backward()
        step_net()
        note(seen, net)
    return seen


for name in sys.argv[1:]:
    program = globals()[name]
    for number, (got, want) in enumerate(zip(program(TYPE), program("local"), strict=True)):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6, err_msg=f"{name}, array {number}")
    print(f"{name} is right", flush=True)
