"""What gradient compression does to a store's numbers, against NumPy.

Run by test_compression.py, as `compressed.py USE...`. The environment variable STORE is the type of the store: one of
hybridps, or MXNet's own.
"""

import os
import sys

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon, nd

from hybridps.codecs import codec_of
from hybridps.errors import HybridPSError

KIND = os.environ.get("STORE", "dist_hybridps_sync")
SHAPES = {"a": (7,), "b": (33, 5), "c": (301, 10), "d": (1,), "e": (1030,)}
STEPS = 5


class Model:
    """The residuals of all workers, and what they push."""

    def __init__(self, bits, threshold, workers):
        self.bits, self.threshold, self.workers = bits, np.float32(threshold), workers
        self.residuals = {}

    def pushed(self, key, gradients):
        """The sum of what is left of the gradients of all workers."""
        total = 0
        for worker, gradient in enumerate(gradients):
            residual = self.residuals.setdefault((key, worker), np.zeros_like(gradient))
            residual += gradient
            t, one = self.threshold, np.float32(1)
            if self.bits == 2:
                sent = np.where(residual >= t, t, np.where(residual <= -t, -t, 0 * t))
            else:
                sent = np.where(residual > t, one, -one)
            residual -= sent
            total = total + sent
        return total


def gradient(step, worker, name):
    rng = np.random.default_rng([step, worker, len(name) + ord(name[0])])
    return rng.standard_normal(SHAPES[name]).astype(np.float32)


def sums(bits=2, threshold=0.5, listed=False):
    kv = mx.kv.create(KIND)
    kv.set_gradient_compression({"type": f"{bits}bit", "threshold": threshold})
    model = Model(bits, threshold, kv.num_workers)
    for name, shape in SHAPES.items():
        kv.init(name, nd.full(shape, 0.123))
    for name, shape in SHAPES.items():
        out = nd.empty(shape)
        kv.pull(name, out=out)
        np.testing.assert_array_equal(out.asnumpy(), np.full(shape, 0.123, np.float32))
    for step in range(STEPS):
        outs = [nd.empty(shape) for shape in SHAPES.values()]
        mine = [nd.array(gradient(step, kv.rank, name)) for name in SHAPES]
        if listed:
            kv.pushpull(list(SHAPES), mine, out=outs)
        else:
            for name, value in zip(SHAPES, mine, strict=True):
                kv.push(name, value)
            for name, out in zip(SHAPES, outs, strict=True):
                kv.pull(name, out=out)
        for name, out in zip(SHAPES, outs, strict=True):
            wanted = model.pushed(name, [gradient(step, worker, name) for worker in range(kv.num_workers)])
            np.testing.assert_allclose(out.asnumpy(), wanted, rtol=1e-6, err_msg=f"{name} in step {step}")
    kv._barrier()


def sums_one_bit():
    sums(bits=1, threshold=0.1)


def sums_in_steps():
    sums(threshold=0.3, listed=True)


def make_net():
    mx.random.seed(5)
    net = gluon.nn.HybridSequential(prefix="net_")
    net.add(gluon.nn.Dense(8, activation="relu", in_units=6), gluon.nn.Dense(3, in_units=8))
    net.initialize(mx.init.Xavier())
    return net, list(net.collect_params().values())


def backward(net, x, y):
    with autograd.record():
        value = gluon.loss.SoftmaxCrossEntropyLoss()(net(nd.array(x)), nd.array(y))
    value.backward()


def trainer():
    """A Gluon Trainer, in both update modes: the weights of SGD with momentum on what is pushed."""
    store, random, size = mx.kv.create(KIND), np.random.RandomState(0), 4
    shape = (5, store.num_workers, size)
    images, labels = random.randn(*shape, 6).astype("float32"), random.randint(0, 3, shape).astype("float32")
    optimizer, rescale = {"learning_rate": 0.5, "momentum": 0.9}, 1 / (size * store.num_workers)
    for update in (False, True):
        (net, trained), (other, expected) = make_net(), make_net()
        mine = gluon.Trainer(
            net.collect_params(),
            "sgd",
            optimizer,
            KIND,
            compression_params={"type": "2bit", "threshold": 0.5},
            update_on_kvstore=update,
        )
        model = Model(2, 0.5, store.num_workers)
        updater = mx.optimizer.get_updater(mx.optimizer.create("sgd", rescale_grad=rescale, **optimizer))
        for x, y in zip(images, labels, strict=True):
            backward(net, x[store.rank], y[store.rank])
            mine.step(size * store.num_workers)
            gradients = []
            for worker in range(store.num_workers):
                backward(other, x[worker], y[worker])
                gradients.append([parameter.grad().asnumpy().copy() for parameter in expected])
            for key, parameter in enumerate(expected):
                updater(key, nd.array(model.pushed(key, [each[key] for each in gradients])), parameter.data())
        for one, wanted in zip(trained, expected, strict=True):
            np.testing.assert_allclose(one.data().asnumpy(), wanted.data().asnumpy(), rtol=1e-4, atol=1e-6)


def module():
    """Module: SGD on what is pushed of the gradients of a linear regression."""
    store = mx.kv.create(KIND)
    workers, rank = store.num_workers, store.rank
    output = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2, no_bias=True, name="fc")
    network = mx.sym.LinearRegressionOutput(output, mx.sym.Variable("label"))
    made = mx.mod.Module(network, label_names=["label"], compression_params={"type": "2bit", "threshold": 0.25})
    made.bind([("data", (4, 3))], [("label", (4, 2))])
    made.init_params(mx.init.One())
    made.init_optimizer(KIND, optimizer_params={"learning_rate": 0.1})
    weight, model, random = np.ones((2, 3), np.float32), Model(2, 0.25, workers), np.random.RandomState(1)
    for _ in range(4):
        x, y = random.randn(workers, 4, 3).astype("float32"), random.randn(workers, 4, 2).astype("float32")
        made.forward_backward(mx.io.DataBatch([nd.array(x[rank])], [nd.array(y[rank])]))
        made.update()
        gradients = [(x[w] @ weight.T - y[w]).T @ x[w] / 2 for w in range(workers)]
        weight = weight - 0.1 / (4 * workers) * model.pushed("fc", gradients)
    np.testing.assert_allclose(made.get_params()[0]["fc_weight"].asnumpy(), weight, rtol=1e-5)


def refusals():
    kv = mx.kv.create(KIND)
    for params, said in (
        ({"threshold": 0.5}, "type"),
        ({"type": "3bit"}, "3bit"),
        ({"type": "2bit", "threshold": 0}, "threshold"),
        ({"type": "2bit", "threshold": -0.5}, "threshold"),
        ({"type": "2bit", "threshold": "x"}, "threshold"),
    ):
        with pytest.raises(mx.MXNetError, match=said):
            kv.set_gradient_compression(params)
    with pytest.raises(AssertionError, match="compression_params"):
        kv.set_gradient_compression("2bit")
    kv.set_gradient_compression({"type": "2bit", "threshold": "0.25", "other": 1})
    kv.set_gradient_compression({"type": "2bit"})
    kv.init(0, nd.zeros((2, 2)))
    for dtype in ("float16", "float64", "int32"):
        with pytest.raises(mx.MXNetError, match=dtype):
            kv.init(1, nd.zeros(2, dtype=dtype))
    sparse = nd.ones((2, 2)).tostype("row_sparse")
    with pytest.raises(mx.MXNetError, match="row_sparse"):
        kv.init(2, sparse)
    with pytest.raises(mx.MXNetError, match="row_sparse"):
        kv.push(0, sparse)
    kv.push(0, nd.ones((2, 2)))
    with pytest.raises(HybridPSError, match="before the first push"):
        kv.set_gradient_compression({"type": "2bit"})
    late = mx.kv.create(KIND)
    late.init(0, nd.zeros(2, dtype="float16"))
    with pytest.raises(HybridPSError, match="float16"):
        late.set_gradient_compression({"type": "2bit"})
    with pytest.raises(HybridPSError, match="sends weights"):
        mx.kv.create("dist_hybridps_elastic").set_gradient_compression({"type": "2bit"})


def sums_in_half_precision():
    """Each worker is a group: what it sends is rounded, and so is the answer; integers stay as they are."""
    codec = codec_of(os.environ["HYBRIDPS_WIRE"])

    def rounded(values):
        payload, out = np.empty(codec.nbytes(values.size, values.dtype), np.uint8), np.empty_like(values)
        codec.encode(values.reshape(-1), payload)
        codec.decode(payload, out.reshape(-1))
        return out

    kv = mx.kv.create(KIND)
    kv.init("c", nd.zeros(SHAPES["c"]))
    kv.init("n", nd.zeros(3, dtype="int32"))
    for step in range(3):
        kv.push("c", nd.array(gradient(step, kv.rank, "c")))
        kv.push("n", nd.full(3, 16_777_217 + step, dtype="int32"))
        sums, integers = nd.empty(SHAPES["c"]), nd.empty(3, dtype="int32")
        kv.pull("c", out=sums)
        kv.pull("n", out=integers)
        parts = [rounded(gradient(step, worker, "c")) for worker in range(kv.num_workers)]
        np.testing.assert_array_equal(sums.asnumpy(), rounded(sum(parts)))
        np.testing.assert_array_equal(integers.asnumpy(), kv.num_workers * (16_777_217 + step))


def different_thresholds():
    kv = mx.kv.create(KIND)
    kv.set_gradient_compression({"type": "2bit", "threshold": 0.5 + kv.rank})
    kv.init(0, nd.zeros(3))
    out = nd.zeros(3)
    kv.push(0, nd.ones(3))
    kv.pull(0, out=out)
    out.asnumpy()


for use in sys.argv[1:]:
    globals()[use]()
    print(f"{use} is right", flush=True)
