"""Two networks with layers in common, each with a Trainer and a store of its own, learn two tasks in turn."""

import mxnet as mx
from common import digits, part, save, start
from mxnet import autograd, gluon, nd

BATCH, STEPS = 32, 8
given, kv = start()
images, labels = digits(STEPS * BATCH)


class Task(gluon.HybridBlock):
    def __init__(self, classes, common=None):
        super().__init__()
        with self.name_scope():
            self.hidden = gluon.nn.Dense(24, activation="tanh", in_units=64, params=common)
            self.scores = gluon.nn.Dense(classes, in_units=24)

    def hybrid_forward(self, F, data):  # noqa: N803
        return self.scores(self.hidden(data))


which = Task(10)
even = Task(2, which.hidden.collect_params())
settings = {"learning_rate": 0.1, "momentum": 0.5}
for net in (which, even):
    net.initialize(mx.init.Xavier())
    net.hybridize()
trainers = [
    gluon.Trainer(net.collect_params(), "sgd", settings, kvstore=store, update_on_kvstore=False)
    for net, store in ((which, kv), (even, mx.kv.create(given.kv_store)))
]
loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
for step in range(STEPS):
    at = slice(step * BATCH, (step + 1) * BATCH)
    data, label = nd.array(part(images[at], kv).reshape((-1, 64))), nd.array(part(labels[at], kv))
    for net, trainer, target in zip((which, even), trainers, (label, label % 2), strict=True):
        with autograd.record():
            loss = loss_of(net(data), target)
        loss.backward()
        trainer.step(BATCH)
save(given.out, kv, [p.data() for net in (which, even) for p in net.collect_params().values()])
