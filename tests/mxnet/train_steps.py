"""A user's training script, without hybridps in it: a few steps on this rank's part of each batch.

    train_steps.py KVSTORE APIS OUT [SEED_STEP]

APIS: which to train with one after the other, joined by commas: gluon (update on the store), gluon-local (update by
the Trainer), module. `gluon@NAME` trains with another store than KVSTORE. Writes the weights after each step to
OUT/<API>-<rank>.npz. The rank comes from mpirun, as the store is created by its name alone.
"""

import os
import sys

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

from hybridps.config import world_rank, world_size

STEPS, BATCH, INPUTS, CLASSES = 4, 48, 20, 10

name, apis, out = sys.argv[1:4]
seed_step = int(sys.argv[4]) if len(sys.argv) > 4 else 0
rank = int(os.environ.get("RANK_BASE", "0")) + world_rank()
workers = int(os.environ.get("WORKERS", world_size()))
random = np.random.RandomState(0)
images = random.randn(STEPS * BATCH, INPUTS).astype("float32")
labels = random.randint(0, CLASSES, STEPS * BATCH)
size = BATCH // workers
parts = [slice(step * BATCH + rank * size, step * BATCH + (rank + 1) * size) for step in range(STEPS)]


def train_gluon(store: str, on_store: bool, after: list[np.ndarray]) -> None:
    network = gluon.nn.HybridSequential()
    network.add(gluon.nn.Dense(33, activation="relu"), gluon.nn.Dense(CLASSES))
    network.initialize(mx.init.Xavier())
    network.hybridize()
    network(mx.nd.array(images[:1]))
    trainer = gluon.Trainer(
        network.collect_params(),
        "sgd",
        {"learning_rate": 0.5, "momentum": 0.9, "wd": 0.01},
        kvstore=store,
        update_on_kvstore=on_store,
    )
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    for part in parts:
        with autograd.record():
            value = loss(network(mx.nd.array(images[part])), mx.nd.array(labels[part]))
        value.backward()
        trainer.step(BATCH)
        after.append(np.concatenate([p.data().asnumpy().ravel() for p in network.collect_params().values()]))


def train_module(store: str, after: list[np.ndarray]) -> None:
    data = mx.sym.Variable("data")
    hidden = mx.sym.Activation(mx.sym.FullyConnected(data, num_hidden=33, name="fc1"), act_type="relu")
    network = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(hidden, num_hidden=CLASSES, name="fc2"), name="softmax")
    module = mx.mod.Module(network)
    mine = np.concatenate([images[part] for part in parts]), np.concatenate([labels[part] for part in parts])
    iterator = mx.io.NDArrayIter(*mine, batch_size=size)

    def remember(parameters) -> None:
        now = module.get_params()[0]
        after.append(np.concatenate([now[key].asnumpy().ravel() for key in sorted(now)]))

    module.fit(
        iterator,
        kvstore=store,
        optimizer="sgd",
        optimizer_params={"learning_rate": 0.5, "momentum": 0.9, "wd": 0.01},
        initializer=mx.init.Xavier(),
        num_epoch=1,
        batch_end_callback=remember,
    )


for api in apis.split(","):
    mx.random.seed(7 + seed_step * rank)
    weights: list[np.ndarray] = []
    kind, _, other = api.partition("@")
    if kind == "module":
        train_module(other or name, weights)
    else:
        train_gluon(other or name, kind == "gluon", weights)
    np.savez(os.path.join(out, f"{api}-{rank}.npz"), *weights)
