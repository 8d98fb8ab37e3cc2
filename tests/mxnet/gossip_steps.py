"""A user's Gluon script, without hybridps in it: each worker trains on images of its own.

    gossip_steps.py KVSTORE STEPS OUT

Writes the weights at the end to OUT/RANK.npz, with what the store pulls.
"""

import os
import sys

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

BATCH, INPUTS, CLASSES = 16, 20, 10
STANDING = 30
"""Steps at the end that all workers take together, and in which the weights change by averaging alone."""

name, steps, out = sys.argv[1], int(sys.argv[2]), sys.argv[3]

random = np.random.RandomState(0)
truth = random.randn(INPUTS, CLASSES)
network = gluon.nn.HybridSequential()
network.add(gluon.nn.Dense(33, activation="relu"), gluon.nn.Dense(CLASSES))
mx.random.seed(os.getpid())  # the first worker's values count
network.initialize(mx.init.Xavier())
network.hybridize()
store = mx.kv.create(name)
trainer = gluon.Trainer(network.collect_params(), "sgd", {"learning_rate": 0.2}, kvstore=store, update_on_kvstore=False)
mine = np.random.RandomState(store.rank)
loss = gluon.loss.SoftmaxCrossEntropyLoss()
losses = []
for step in range(steps + STANDING):
    if step >= steps:
        trainer.set_learning_rate(0)
        store.barrier()
    images = mine.randn(BATCH, INPUTS).astype("float32")
    with autograd.record():
        value = loss(network(mx.nd.array(images)), mx.nd.array((images @ truth).argmax(1)))
    value.backward()
    trainer.step(BATCH * store.num_workers)
    losses.append(value.mean().asscalar())
    if step == 0:
        store.barrier()
parameters = trainer._params  # in the order of their keys
weights = [parameter.data().asnumpy() for parameter in parameters]
pulled = mx.nd.zeros(parameters[0].shape)
store.pull(0, out=pulled)
store.barrier()
np.savez(
    os.path.join(out, f"{store.rank}.npz"),
    weights=np.concatenate([weight.ravel() for weight in weights]),
    pulled=pulled.asnumpy().ravel(),
    losses=np.array(losses),
    type=np.array(str(store.type)),
)
