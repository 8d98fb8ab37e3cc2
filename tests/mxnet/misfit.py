"""A training script whose network differs between groups: a mistake."""

import os

import mxnet as mx
from mxnet import autograd, gluon

net = gluon.nn.Dense(3 + int(os.environ["HYBRIDPS_GROUP_INDEX"]), in_units=4)
net.initialize()
trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, kvstore="dist_hybridps")
for _ in range(10**6):
    with autograd.record():
        loss = net(mx.nd.ones((2, 4))).sum()
    loss.backward()
    trainer.step(2)
    loss.wait_to_read()
