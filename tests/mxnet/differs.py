"""A training script whose network differs between the groups, or between the workers of a group, as DIFFERS says."""

import os

import mxnet as mx
from mxnet import autograd, gluon

from hybridps.config import world_rank

other = int(os.environ.get("HYBRIDPS_GROUP_INDEX", "0")) or world_rank()
how = os.environ["DIFFERS"] if other else ""
dtype = "float64" if how == "dtype" else "float32"
net = gluon.nn.HybridSequential()
net.add(gluon.nn.Dense(3 + (how == "shape"), in_units=4))
if how == "more":
    net.add(gluon.nn.Dense(2, in_units=3))
net.initialize()
net.cast(dtype)
trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, kvstore="dist_hybridps")
for _ in range(3000):
    with autograd.record():
        loss = net(mx.nd.ones((2, 4), dtype=dtype)).sum()
    loss.backward()
    trainer.step(2)
    loss.wait_to_read()
