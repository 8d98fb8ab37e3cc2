"""Gluon: a small convolutional network. Only the type of the KVStore is specific to hybridps."""

import mxnet as mx
from digits import TRAINED, load
from mxnet import autograd, gluon

BATCH, EPOCHS = 16, 4
images, labels = (mx.nd.array(array) for array in load())
images = images.expand_dims(axis=1)

kv = mx.kv.create("dist_hybridps")
net = gluon.nn.HybridSequential()
net.add(gluon.nn.Conv2D(16, 3, activation="relu"), gluon.nn.Dense(64, activation="relu"), gluon.nn.Dense(10))
net.initialize(mx.init.Xavier())
trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9}, kvstore=kv)
loss_of = gluon.loss.SoftmaxCrossEntropyLoss()

for epoch in range(1, EPOCHS + 1):
    for step in range(TRAINED // (BATCH * kv.num_workers)):
        start = (step * kv.num_workers + kv.rank) * BATCH  # this worker's images
        with autograd.record():
            loss = loss_of(net(images[start : start + BATCH]), labels[start : start + BATCH])
        loss.backward()
        trainer.step(BATCH * kv.num_workers)
    right = net(images[TRAINED:]).argmax(axis=1) == labels[TRAINED:]
    accuracy, last_loss = right.mean().asscalar(), loss.mean().asscalar()
    print(f"hybridps: epoch={epoch} accuracy={accuracy:.4f} loss={last_loss:.4f} worker={kv.rank}", flush=True)
