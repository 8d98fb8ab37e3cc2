"""A training script that fails on the second worker, and trains on elsewhere."""

import os

import mxnet as mx
from mxnet import autograd, gluon

net = gluon.nn.Dense(3, in_units=4)
net.initialize()
kv = mx.kv.create("dist_hybridps")
trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.0}, kvstore=kv)
for step in range(200):
    with autograd.record():
        loss = net(mx.nd.ones((2, 4))).sum()
    loss.backward()
    trainer.step(2)
    loss.wait_to_read()
    if step == 20 and kv.rank == int(os.environ["FAILS_ON"]):
        raise ValueError("this worker fails")
print(f"worker {kv.rank} is done")
