"""A loop without Trainer and Module: each sum is read before the next one is pushed."""

import mxnet as mx
import numpy as np
from common import digits, part, save, start
from mxnet import autograd, nd

BATCH, STEPS, RATE = 32, 8, 0.2
given, kv = start(optimizer=0)
images, labels = digits(STEPS * BATCH)
random = np.random.RandomState(2 + kv.rank)  # the store gives all workers the weights of the first one
shapes = {"hidden": (24, 64), "hidden_bias": (24,), "out": (10, 24), "out_bias": (10,)}
weights = {name: nd.array(random.standard_normal(shape) * 0.1) for name, shape in shapes.items()}
if given.optimizer:
    kv.set_optimizer(mx.optimizer.create("sgd", learning_rate=RATE, momentum=0.5, rescale_grad=1 / BATCH))
for name, weight in weights.items():
    kv.init(name, weight)
    kv.pull(name, out=weight)
    weight.attach_grad()
for step in range(STEPS):
    at = slice(step * BATCH, (step + 1) * BATCH)
    data, label = nd.array(part(images[at], kv).reshape((-1, 64))), nd.array(part(labels[at], kv))
    with autograd.record():
        hidden = nd.tanh(nd.FullyConnected(data, weights["hidden"], weights["hidden_bias"], num_hidden=24))
        scores = nd.FullyConnected(hidden, weights["out"], weights["out_bias"], num_hidden=10)
        loss = nd.softmax_cross_entropy(scores, label)
    loss.backward()
    for number, (name, weight) in enumerate(reversed(weights.items())):
        kv.push(name, weight.grad, priority=-number)
        if given.optimizer:
            kv.pull(name, out=weight, priority=-number)
            continue
        total = nd.zeros(weight.shape)
        kv.pull(name, out=total)
        weight[:] = weight.asnumpy() - RATE / BATCH * total.asnumpy()
    kv._barrier()
save(given.out, kv, weights.values())
