"""Ratings of items by users, as products of their embeddings, whose gradients are sparse. Gluon."""

import mxnet as mx
import numpy as np
from common import part, save, start
from mxnet import autograd, gluon

BATCH, USERS, ITEMS, STEPS = 32, 30, 20, 8
SETTINGS = {
    "sgd": {"learning_rate": 0.5},
    "momentum": {"learning_rate": 0.2, "momentum": 0.9, "wd": 1e-3},
    "adagrad": {"learning_rate": 0.1, "eps": 1e-3},
    "adam": {"learning_rate": 0.05, "epsilon": 1e-3},
}


class Ratings(gluon.HybridBlock):
    def __init__(self):
        super().__init__()
        self.users = gluon.nn.Embedding(USERS, 4, sparse_grad=True)
        self.items = gluon.nn.Embedding(ITEMS, 4, sparse_grad=True)
        self.hidden = gluon.nn.Dense(6, activation="tanh", in_units=4)
        self.score = gluon.nn.Dense(1, in_units=6)

    def hybrid_forward(self, F, user, item):  # noqa: N803
        return self.score(self.hidden(self.users(user) * self.items(item))).reshape((-1,))


given, kv = start(optimizer="sgd")
net = Ratings()
net.initialize(mx.init.Normal(0.5))
net.hybridize()
name = "sgd" if given.optimizer == "momentum" else given.optimizer
trainer = gluon.Trainer(net.collect_params(), name, SETTINGS[given.optimizer], kvstore=kv)
loss_of = gluon.loss.L2Loss()
random = np.random.RandomState(5)
for step in range(STEPS):
    known = 5 + step * (ITEMS - 5) // STEPS  # users and items that came by now
    users, items = random.randint(0, known, BATCH), random.randint(0, known, BATCH)
    ratings = np.cos(users * 0.7) * np.sin(items * 1.3)
    user, item, rating = (mx.nd.array(part(each, kv)) for each in (users, items, ratings))
    with autograd.record():
        loss = loss_of(net(user, item), rating)
    loss.backward()
    trainer.step(BATCH)
save(given.out, kv, [parameter.data() for parameter in net.collect_params().values()])
