"""A minimal training script, with the changes that the README shows."""

import mxnet as mx
from mxnet import autograd, gluon
from sklearn.datasets import load_digits

batch_size = 16
digits = load_digits()
images, labels = mx.nd.array(digits.images[:, None] / 16), mx.nd.array(digits.target)

kv = mx.kv.create("dist_hybridps")
mx.random.seed(1)
net = gluon.nn.HybridSequential()
net.add(gluon.nn.Conv2D(16, 3, activation="relu"), gluon.nn.Dense(64, activation="relu"), gluon.nn.Dense(10))
net.initialize(mx.init.Xavier())
trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9}, kvstore=kv)
loss_fn = gluon.loss.SoftmaxCrossEntropyLoss()

steps = 1400 // (batch_size * kv.num_workers)
for _epoch in range(4):
    for step in range(steps):
        start = (step * kv.num_workers + kv.rank) * batch_size
        data, label = images[start : start + batch_size], labels[start : start + batch_size]
        with autograd.record():
            loss = loss_fn(net(data), label)
        loss.backward()
        trainer.step(batch_size * kv.num_workers)
accuracy = (net(images[1400:]).argmax(axis=1) == labels[1400:]).mean().asscalar()
print(f"worker {kv.rank} of {kv.num_workers}: {100 * accuracy:.1f} % of the held-out digits are right")
