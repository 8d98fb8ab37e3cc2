"""What users do with a store, each on two workers and against MXNet alone. Run by test_store.py, as `uses.py NAME...`.

Every function makes stores of its own, so that several live in one process.
"""

import os
import sys

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon, nd

from hybridps.errors import HybridPSError, LayoutError

STEPS, BATCH = 6, 24
rank, workers = int(os.environ["OMPI_COMM_WORLD_RANK"]), int(os.environ["OMPI_COMM_WORLD_SIZE"])
random = np.random.RandomState(0)
images = random.randn(STEPS * BATCH, 6).astype("float32")
labels = random.randint(0, 3, STEPS * BATCH).astype("float32")


def make_net(devices=1, **hybridize):
    mx.random.seed(5)
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(16, activation="relu"), gluon.nn.Dense(16, activation="relu"), gluon.nn.Dense(3))
    net.initialize(mx.init.Xavier(), ctx=[mx.cpu(device) for device in range(devices)])
    net.hybridize(**hybridize)
    for device in range(devices):
        net(nd.array(images[:1], ctx=mx.cpu(device)))
    return net


def train(
    kvstore, net=None, optimizer="sgd", change=lambda net, step: None, devices=1, add=False, clip=False, **trainer
):
    """Weights after some steps: of this worker's part of each batch, or of the whole without a store."""
    net = net or make_net(devices)
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    parameters = net.collect_params()
    if add:
        parameters.setattr("grad_req", "add")
    settings = {"learning_rate": 0.05} | ({"momentum": 0.9} if optimizer == "sgd" else {})
    trained = gluon.Trainer(parameters, optimizer, settings, kvstore=kvstore, **trainer)
    parts, mine = (workers, rank) if kvstore is not None else (1, 0)
    size = BATCH // parts // devices
    for step in range(STEPS):
        change(net, step)
        for _ in range(2 if add else 1):
            for device in range(devices):
                start = step * BATCH + (mine * devices + device) * size
                x, y = (nd.array(a[start : start + size], ctx=mx.cpu(device)) for a in (images, labels))
                with autograd.record():
                    value = loss(net(x), y)
                value.backward()
        if clip:
            trained.allreduce_grads()
            gluon.utils.clip_global_norm([p.list_grad()[0] for p in parameters.values()], 0.5 * BATCH)
            trained.update(BATCH)
        else:
            trained.step(BATCH, ignore_stale_grad=True)
        if add:
            parameters.zero_grad()
    return [p.list_data()[-1].asnumpy() for p in parameters.values()]


def check(expected, **options):
    for got, want in zip(train("dist_hybridps_sync", **options), expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)


def optimizers():
    for name in ("adam", "nag", "adagrad", "rmsprop"):
        for local in (None, False):
            check(train(None, optimizer=name), optimizer=name, update_on_kvstore=local)


def static_shapes():
    expected = train(None)
    for local in (None, False):
        check(expected, net=make_net(static_alloc=True, static_shape=True), update_on_kvstore=local)
        check(expected, net=make_net(static_alloc=True), update_on_kvstore=local)


def several_devices():
    expected = train(None)
    for local in (None, False):
        check(expected, devices=2, update_on_kvstore=local)


def gradients_that_add_up():
    expected = train(None, add=True)
    for local in (None, False):
        check(expected, add=True, update_on_kvstore=local)


def clipping():
    check(train(None, clip=True), clip=True, update_on_kvstore=False)


def freezing():
    def freeze(net, step):
        if step in (2, 4):
            net[0].collect_params().setattr("grad_req", "null" if step == 2 else "write")

    expected = train(None, change=freeze)
    for local in (None, False):
        check(expected, change=freeze, update_on_kvstore=local)


def mixed_dtypes():
    def make():
        net = make_net()
        net.cast("float64")
        return net

    class Cast(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            self.inner, self.outer = make(), gluon.nn.Dense(3, in_units=3)
            mx.random.seed(9)
            self.outer.initialize(mx.init.Xavier())

        def forward(self, x):
            return self.outer(self.inner(x.astype("float64")).astype("float32"))

    check(train(None, net=Cast()), net=Cast())


def sparse_gradients():
    class Words(gluon.Block):
        def __init__(self, sparse):
            super().__init__()
            mx.random.seed(4)
            self.embedding = gluon.nn.Embedding(10, 4, sparse_grad=sparse)
            self.dense = gluon.nn.Dense(3, in_units=24)
            self.initialize(mx.init.Xavier())

        def forward(self, x):
            return self.dense(self.embedding((x.abs() * 3).clip(0, 9).floor()).reshape((x.shape[0], -1)))

    check(train(None, net=Words(False)), net=Words(True))


def two_trainers():
    kept = []

    def other(net, step):
        if step == 0:
            kept.append(gluon.Trainer(make_net().collect_params(), "adam", kvstore="dist_hybridps_sync"))

    check(train(None, optimizer="adam"), optimizer="adam", change=other)


def states():
    kv = mx.kv.create("dist_hybridps_sync")
    kv.set_optimizer(mx.optimizer.create("sgd", learning_rate=0.1, momentum=0.9))
    kv.init("w", nd.zeros(4))
    out = nd.zeros(4)
    name = os.path.join(os.environ["FOLDER"], f"states-{rank}")
    kv.push("w", nd.ones(4))
    kv.save_optimizer_states(name)
    kv.push("w", nd.ones(4))
    kv.pull("w", out=out)
    first = out.asnumpy()
    kv.load_optimizer_states(name)
    kv.push("w", nd.ones(4))
    kv.pull("w", out=out)
    # Momentum went on from the saved state: the third step is as long as the second.
    np.testing.assert_allclose(out.asnumpy() - first, first + 0.1 * workers, rtol=1e-5)


def by_hand():
    kv = mx.kv.create("dist_hybridps_sync")
    assert (kv.rank, kv.num_workers, kv.type, kv.num_dead_node(0)) == (rank, workers, "dist_hybridps_sync", 0)
    out = nd.zeros((2, 3))
    total = workers * (workers + 1) / 2
    kv.init(3, nd.ones((2, 3)) * (rank + 5))
    kv.pull(3, out=out)
    assert (out.asnumpy() == 5).all()
    kv.push(3, nd.ones((2, 3)) * (rank + 1))
    kv.pull(3, out=out)
    assert (out.asnumpy() == total).all()
    kv.push(3, [nd.ones((2, 3))] * 4)
    kv.pull(3, out=out)
    assert (out.asnumpy() == 4 * workers).all()
    keys = ["a", "b"]
    kv.init(keys, [nd.ones((2, 3))] * 2)
    kv.push(keys, [[nd.ones((2, 3)) * (rank + 1)] * 2] * 2)
    outs = [nd.zeros((2, 3)) for _ in keys]
    kv.pull(keys, out=outs)
    assert all((one.asnumpy() == 2 * total).all() for one in outs)
    for values in ([nd.ones((2, 3))], [nd.ones((2, 3))] * 2, [nd.ones((2, 3))]):
        kv.pushpull("a", values, out=out)
        assert (out.asnumpy() == len(values) * workers).all()
    kv.barrier()


def a_pushed_gradient_stays():
    kv = mx.kv.create("dist_hybridps_sync")
    weight, out = nd.ones(4), nd.zeros(4)
    weight.attach_grad()
    kv.broadcast("w", weight, out=weight)
    with autograd.record():
        (weight * 3).sum().backward()
    for _ in range(4):
        kv.pushpull("w", weight.grad, out=out)
        assert (out.asnumpy() == 3 * workers).all()
        assert (weight.grad.asnumpy() == 3).all()


def sparse_rows():
    kv = mx.kv.create("dist_hybridps_sync")
    table = nd.arange(12).reshape((6, 2))
    kv.init("e", table.tostype("row_sparse"))
    out = nd.sparse.zeros("row_sparse", (6, 2))
    kv.row_sparse_pull("e", out=out, row_ids=nd.array([1, 3]))
    want = np.zeros((6, 2))
    want[[1, 3]] = table.asnumpy()[[1, 3]]
    np.testing.assert_array_equal(out.asnumpy(), want)


def bad_calls():
    kv = mx.kv.create("dist_hybridps_sync")
    kv.init("w", nd.ones(2))
    with pytest.raises(LayoutError, match="'w' is known already"):
        kv.init("w", nd.ones(2))
    with pytest.raises(LayoutError, match="'x' is unknown"):
        kv.pull("x", out=nd.zeros(2))
    with pytest.raises(LayoutError, match="int32"):
        kv.init("i", nd.ones(2, dtype="int32"))
    with pytest.raises(HybridPSError, match="compression"):
        kv.set_gradient_compression({"type": "2bit"})


def module_with_fixed_parameters():
    data = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=8, name="fc1")
    network = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(data, num_hidden=3, name="fc2"), name="softmax")
    module = mx.mod.Module(network, fixed_param_names=["fc1_weight"])
    module.bind([("data", (4, 6))], [("softmax_label", (4,))])
    module.init_params(mx.init.Xavier())
    fixed = module.get_params()[0]["fc1_weight"].asnumpy()
    module.init_optimizer("dist_hybridps_sync", optimizer_params={"learning_rate": 0.1})
    start = module.get_params()[0]["fc1_weight"].asnumpy()
    for _ in range(4):
        module.forward_backward(mx.io.DataBatch([nd.array(images[:4])], [nd.array(labels[:4])]))
        module.update()
        module.forward(mx.io.DataBatch([nd.array(images[:4])]), is_train=False)
        module.get_outputs()[0].asnumpy()
    assert fixed.shape == start.shape
    np.testing.assert_array_equal(module.get_params()[0]["fc1_weight"].asnumpy(), start)


def half_a_step():
    kv = mx.kv.create("dist_hybridps_sync")
    for key in "ab":
        weight = nd.ones(4)
        kv.broadcast(key, weight, out=weight)
    for _ in range(2):
        for key in "ab":
            kv.pushpull(key, nd.ones(4))
    kv.pushpull("a", nd.ones(4))  # and the process ends


def fork():
    kv = mx.kv.create("dist_hybridps_sync")
    value = nd.ones(4)
    kv.init("w", value)
    kv.push("w", nd.ones(4))
    child = os.fork()
    if child == 0:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def pull_by_one_alone():
    kv = mx.kv.create("dist_hybridps_elastic")
    weight = nd.ones(4)
    kv.broadcast("w", weight, out=weight)
    for step in range(50):
        kv.pushpull("w", nd.ones(4))
        if rank == 0 and step == 5:
            kv.pull("w", out=nd.zeros(4))
    nd.waitall()


def centre_as_it_is_now():
    kv = mx.kv.create("dist_hybridps_elastic")
    weight, out = nd.ones(4) * 2, nd.zeros(4)
    kv.broadcast("w", weight, out=weight)
    kv.pull("w", out=out)
    assert (out.asnumpy() == 2).all()
    kv.barrier()  # the other group has looked too
    for _ in range(3):
        kv.pushpull("w", nd.ones(4))
        weight += 1
    kv.pull("w", out=out)
    first = out.asnumpy()
    kv.barrier()
    kv.pull("w", out=out)
    assert (first > 2).all()
    assert (out.asnumpy() >= first).all()


for use in sys.argv[1:]:
    globals()[use]()
    print(f"{use} is right on worker {rank}", flush=True)
