"""Gradients of two half batches are added up, and training is resumed midway from files."""

import mxnet as mx
from common import digits, part, save, start
from mxnet import autograd, gluon, nd

BATCH, STEPS = 32, 8
given, kv = start(on_store=1, optimizer="adam")
images, labels = digits(STEPS * BATCH)
loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
settings = {"learning_rate": 0.01, "epsilon": 1e-3} if given.optimizer == "adam" else {"learning_rate": 0.1}


def make():
    """A network and a Trainer, as at the beginning."""
    mx.random.seed(7)
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(24, activation="tanh", in_units=64), gluon.nn.Dense(10, in_units=24))
    net.initialize(mx.init.Xavier())
    net.collect_params().setattr("grad_req", "add")
    return net, net.collect_params()


def train(net, parameters, trainer, steps):
    for step in steps:
        for at in (step * BATCH, step * BATCH + BATCH // 2):
            batch = slice(at, at + BATCH // 2)
            data, label = nd.array(part(images[batch], kv).reshape((-1, 64))), nd.array(part(labels[batch], kv))
            with autograd.record():
                loss = loss_of(net(data), label)
            loss.backward()
        trainer.step(BATCH)
        parameters.zero_grad()


def trainer_of(parameters, store):
    return gluon.Trainer(parameters, given.optimizer, settings, kvstore=store, update_on_kvstore=bool(given.on_store))


net, parameters = make()
trainer = trainer_of(parameters, kv)
train(net, parameters, trainer, range(STEPS // 2))
files = [f"{given.out}.{kv.rank}.{kind}" for kind in ("params", "states")]
net.save_parameters(files[0])
trainer.save_states(files[1])
train(net, parameters, trainer, range(2))  # and then the machine was lost
net, parameters = make()
net.load_parameters(files[0])
trainer = trainer_of(parameters, mx.kv.create(given.kv_store))
trainer.load_states(files[1])
train(net, parameters, trainer, range(STEPS // 2, STEPS))
save(given.out, kv, [parameter.data() for parameter in parameters.values()])
