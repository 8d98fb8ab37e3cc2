"""Stores of all types that average weights, and what they refuse. Two workers, each a group."""

from __future__ import annotations

import sys

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon

from hybridps.algorithms import KNOWN

WORKERS, RATE = 2, 0.1


def trained(name: str, optimizer: str = "sgd", **given: float) -> tuple[mx.kv.KVStore, np.ndarray]:
    """A network after some steps on data of this worker."""
    kv = mx.kv.create(f"dist_hybridps_{name}")
    net = gluon.nn.Dense(3, in_units=4)
    net.initialize(mx.init.Constant(0.5))
    trainer = gluon.Trainer(net.collect_params(), optimizer, {"learning_rate": RATE, **given}, kvstore=kv)
    random = np.random.default_rng(kv.rank)
    for _ in range(7):
        with autograd.record():
            loss = (net(mx.nd.array(random.standard_normal((8, 4)))) ** 2).sum()
        loss.backward()
        trainer.step(8 * WORKERS)
    return kv, net.weight.data().asnumpy()


def every_type() -> None:
    for name, known in KNOWN.items():
        if known.is_asynchronous or name == "sync":
            continue
        kv, weight = trained(name, "nag", momentum=0.5)
        assert kv.type == f"dist_hybridps_{name}_sync", kv.type
        assert np.isfinite(weight).all()
        assert abs(weight).max() < 0.5, (name, weight)


def another_optimizer() -> None:
    for optimizer, given in (("sgd", {}), ("sgd", {"momentum": 0.9}), ("nag", {}), ("adam", {})):
        with pytest.raises(mx.MXNetError, match="dist_hybridps_eamsgd_sync needs Nesterov's momentum"):
            trained("eamsgd", optimizer, **given)


def alpha_of_the_rate() -> None:
    """Both groups meet a centre of zeros: an exchange with the rate 0.1 leaves 1 - 0.1 rho of the weights."""
    kv = mx.kv.create("dist_hybridps_easgd")
    weight, gradient = mx.nd.zeros(8), mx.nd.ones(8) * (1 if kv.rank else -1)
    kv.broadcast("w", weight, out=weight)
    optimizer = mx.optimizer.SGD(learning_rate=0.1, rescale_grad=1 / WORKERS)
    kv.set_optimizer(optimizer)
    kv.pushpull("w", gradient, out=weight)
    first = weight.asnumpy().copy()
    assert abs(abs(first) - 0.1).max() < 1e-6, first
    for rate in (0.1, 0.2):
        kv._updater.optimizer.set_learning_rate(rate)
        kv.pushpull("w", gradient * 0, out=weight)
        first = first * (1 - rate * 2.5)
        np.testing.assert_allclose(weight.asnumpy(), first, rtol=1e-5)


for use in sys.argv[1:]:
    globals()[use]()
    print(f"{use} is right", flush=True)
