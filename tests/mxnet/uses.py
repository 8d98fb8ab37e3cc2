"""What users do with a store, each on two workers and against MXNet alone. Run by test_store.py, as `uses.py NAME...`.

Every function makes stores of its own, so that several live in one process.
"""

import os
import sys
import time

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon, nd

from hybridps.config import world_rank, world_size
from hybridps.errors import HybridPSError, LayoutError

STEPS, BATCH = 6, 24
rank, workers = world_rank(), world_size()
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
    kvstore,
    net=None,
    optimizer="sgd",
    change=lambda net, step: None,
    devices=1,
    add=False,
    clip=False,
    schedule=None,
    **trainer,
):
    """Weights after some steps: of this worker's part of each batch, or of the whole without a store."""
    net = net or make_net(devices)
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    parameters = net.collect_params()
    if add:
        parameters.setattr("grad_req", "add")
    settings = {"learning_rate": 0.05} | ({"momentum": 0.9} if optimizer == "sgd" else {})
    settings |= {"lr_scheduler": schedule()} if schedule else {}
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
        if clip == "own":
            gluon.utils.clip_global_norm([p.list_grad()[0] for p in parameters.values()], 0.5)
        if clip is True:
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
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def optimizers():
    for name in ("adam", "nag", "adagrad", "rmsprop"):
        for local in (None, False):
            check(train(None, optimizer=name), optimizer=name, update_on_kvstore=local)


class InverseSquareRoot(mx.lr_scheduler.LRScheduler):
    """A schedule of the kind that Transformers are trained with. It has no rate for update 0."""

    def __call__(self, num_update):
        return self.base_lr * num_update**-0.5


def schedules():
    for optimizer in ("sgd", "adam"):
        expected = train(None, optimizer=optimizer, schedule=InverseSquareRoot)
        for local in (None, False):
            check(expected, optimizer=optimizer, schedule=InverseSquareRoot, update_on_kvstore=local)


def clipping_before_the_step():
    static = {"static_alloc": True, "static_shape": True}
    for local in (None, False):
        expected = train("dist_hybridps_sync", clip="own", update_on_kvstore=local)
        check(expected, net=make_net(**static), clip="own", update_on_kvstore=local)


def static_shapes():
    expected = train(None)
    for local in (None, False):
        check(expected, net=make_net(static_alloc=True, static_shape=True), update_on_kvstore=local)
        check(expected, net=make_net(static_alloc=True), update_on_kvstore=local)


def several_devices():
    expected = train(None)
    for local in (None, False):
        check(expected, devices=2, update_on_kvstore=local)


def devices_that_differ():
    """The first worker has one device, the others have two."""
    expected = train(None)
    for local in (None, False):
        check(expected, devices=1 + (rank > 0), update_on_kvstore=local)


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
        def __init__(self):
            super().__init__()
            mx.random.seed(4)
            self.embedding = gluon.nn.Embedding(10, 4, sparse_grad=True)
            self.dense = gluon.nn.Dense(3, in_units=24)
            self.initialize(mx.init.Xavier())

        def forward(self, x):
            return self.dense(self.embedding((x.abs() * 3).clip(0, 9).floor()).reshape((x.shape[0], -1)))

    check(train(None, net=Words()), net=Words())


def two_trainers():
    kept = []

    def other(net, step):
        if step == 0:
            kept.append(gluon.Trainer(make_net().collect_params(), "adam", kvstore="dist_hybridps_sync"))

    check(train(None, optimizer="adam"), optimizer="adam", change=other)


def views_of_gradients():
    """A program may look at gradients, and write to them, through views that it took before the first step."""
    net, seen = gluon.nn.Dense(1, in_units=3), []
    net.initialize(mx.init.One())
    store = mx.kv.create("dist_hybridps_sync")
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, store, update_on_kvstore=False)
    view = net.weight.grad()[0]
    for step in range(5):
        with autograd.record():
            loss = net(nd.ones((2, 3)) * step).sum()
        loss.backward()
        seen.append(view.asnumpy()[0])
        view *= 0  # the weight stays as it was
        trainer.step(2)
    assert seen == [2 * step for step in range(5)], seen
    assert (net.weight.data().asnumpy() == 1).all()


def two_stores_sum_one_gradient():
    stores, weight = [mx.kv.create("dist_hybridps_sync") for _ in range(2)], nd.ones(4)
    weight.attach_grad()
    for store in stores:
        store.broadcast("w", weight, out=weight)
    gradient = weight.grad
    for step in range(8):
        for number, store in enumerate(stores):
            with autograd.record():
                loss = (weight * (10 * step + number + 1)).sum()
            loss.backward()
            store.pushpull("w", gradient)
            assert (gradient.asnumpy() == (10 * step + number + 1) * workers).all(), (step, number)


def a_gradient_in_another_array():
    """As after `initialize(force_reinit=True)`, while the last sum is under way."""
    kv, weight = mx.kv.create("dist_hybridps_sync"), nd.ones(4)
    weight.attach_grad()
    kv.broadcast("w", weight, out=weight)
    gradient = weight.grad
    for step in range(4):
        if step == 3 and rank == 1:
            time.sleep(0.5)
        with autograd.record():
            loss = (weight * (step + 1)).sum()
        loss.backward()
        kv.pushpull("w", gradient)
    other = nd.ones(4) * 100
    kv.pushpull("w", other)
    assert (gradient.asnumpy() == 4 * workers).all(), gradient
    assert (other.asnumpy() == 100 * workers).all(), other


def numpy_interface():
    mx.npx.set_np()
    try:
        store, out = mx.kv.create("dist_hybridps_sync"), mx.np.zeros(3)
        store.init("a", mx.np.ones(3))
        store.push("a", mx.np.ones(3) * 2)
        store.pull("a", out=out)
        assert (out.asnumpy() == 2 * workers).all()
        for local in (True, False):
            net, store = gluon.nn.Dense(2, in_units=3), mx.kv.create("dist_hybridps_sync")
            net.initialize(mx.init.One())
            options = {"learning_rate": 0.1}
            trainer = gluon.Trainer(net.collect_params(), "sgd", options, store, update_on_kvstore=local)
            for _ in range(5):
                with autograd.record():
                    loss = net(mx.np.ones((4, 3))).sum()
                loss.backward()
                trainer.step(4 * workers)
            np.testing.assert_allclose(net.weight.data().asnumpy(), 0.5, rtol=1e-5)
    finally:
        mx.npx.reset_np()


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
    kv = mx.kv.create("dist_hybridps_sync")
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
    for ids in ([1, 3], [4, 1, 4, 3]):
        out = nd.sparse.zeros("row_sparse", (6, 2))
        kv.row_sparse_pull("e", out=out, row_ids=nd.array(ids))
        want = np.zeros((6, 2))
        want[ids] = table.asnumpy()[ids]
        np.testing.assert_array_equal(out.asnumpy(), want)
        found = nd.Embedding(nd.array(ids), out, input_dim=6, output_dim=2, sparse_grad=True)
        np.testing.assert_array_equal(found.asnumpy(), want[ids])


def two_weights():
    """A store, and two keys of it with gradients."""
    kv = mx.kv.create("dist_hybridps_sync")
    weights = [nd.ones(4), nd.ones(5)]
    for key, weight in enumerate(weights):
        weight.attach_grad()
        kv.broadcast(key, weight, out=weight)
    return kv, weights


def gradients_taken_anew():
    """`weight.grad` is another object each time."""
    for together in (False, True):
        kv, weights = two_weights()
        for step in range(6):
            for key, weight in enumerate(weights):
                with autograd.record():
                    (weight * (step + key + 1)).sum().backward()
            if together:
                kv.pushpull([0, 1], [weight.grad for weight in weights])
            else:
                for key, weight in enumerate(weights):
                    kv.pushpull(key, weight.grad)
            for key, weight in enumerate(weights):
                assert (weight.grad.asnumpy() == (step + key + 1) * workers).all(), (together, step, key)


def gradients_kept_and_taken_anew():
    """The same objects until they are moved, and others then."""
    for late in (2, 3, 4):
        kv = mx.kv.create("dist_hybridps_sync")
        weight = nd.ones(4)
        weight.attach_grad()
        kv.broadcast("w", weight, out=weight)
        kept = weight.grad
        for step in range(7):
            with autograd.record():
                (weight * (step + 1)).sum().backward()
            gradient = weight.grad if step >= late else kept
            kv.pushpull("w", gradient)
            assert (gradient.asnumpy() == (step + 1) * workers).all(), (late, step)
            assert (weight.grad.asnumpy() == (step + 1) * workers).all(), (late, step)


def left_out_and_back():
    kv, weights = two_weights()
    gradients = [weight.grad for weight in weights]
    for step in range(12):
        for key, weight in enumerate(weights):
            with autograd.record():
                (weight * (step + key + 1)).sum().backward()
        came = (0,) if step in (4, 5) else (0, 1)
        for key in came:
            kv.pushpull(key, gradients[key])
        if step == 4:
            kv.barrier()
        for key in came:
            assert (gradients[key].asnumpy() == (step + key + 1) * workers).all(), (step, key)


def left_out_for_long():
    """What was summed last is not summed again, until it is infinite and refused."""
    kv, weights = two_weights()
    gradients = [weight.grad for weight in weights]
    for step in range(150):
        for key in (0, 1) if step < 5 else (0,):
            with autograd.record():
                (weights[key] * 3).sum().backward()
            kv.pushpull(key, gradients[key])
        if step == 5:
            kv.barrier()
    assert (gradients[0].asnumpy() == 3 * workers).all()


def a_branch_that_rests():
    """One that does not run in some steps: its gradients are stale then, and right again when it runs."""

    class Branches(gluon.Block):
        def __init__(self, **hybridize):
            super().__init__()
            mx.random.seed(7)
            self.one, self.other = gluon.nn.HybridSequential(), gluon.nn.HybridSequential()
            for block in (self.one, self.other):
                block.add(gluon.nn.Dense(3, in_units=6))
                self.register_child(block)
            self.initialize(mx.init.Xavier())
            for block in (self.one, self.other):
                block.hybridize(**hybridize)
            self.rests = False

        def forward(self, x):
            return self.one(x) if self.rests else self.one(x) + self.other(x)

    for rest in ((1,), (2,), (3,), (2, 3, 4)):

        def change(net, step, rest=rest):
            net.rests = step in rest

        for hybridize in ({}, {"static_alloc": True, "static_shape": True}):
            expected = train(None, net=Branches(), change=change)
            # A store that updates cannot tell: the Trainer alone knows which gradients are stale.
            check(expected, net=Branches(**hybridize), change=change, update_on_kvstore=False)


def where_sums_and_weights_go():
    kv = mx.kv.create("dist_hybridps_sync")
    weight, out = nd.ones(3) * 5, nd.zeros(3)
    kv.broadcast("w", weight, out=weight)
    for _ in range(2):
        kv.push("w", nd.ones(3))
        kv.pull("w", out=out)
        assert (out.asnumpy() == workers).all()
        assert (weight.asnumpy() == 5).all()
    for made in ("init", "broadcast"):
        kv = mx.kv.create("dist_hybridps_sync")
        kv.set_optimizer(mx.optimizer.create("sgd", learning_rate=1.0))
        weight = nd.ones(3) * 5
        kv.init("w", weight) if made == "init" else kv.broadcast("w", weight, out=weight)
        for step in range(3):
            out = nd.ones(3) * (rank + 100)
            kv.pushpull("w", nd.ones(3), out=out)
            assert (out.asnumpy() == 5 - (step + 1) * workers).all(), (made, step)


def bad_calls():
    kv = mx.kv.create("dist_hybridps_sync")
    kv.init("w", nd.ones(2))
    with pytest.raises(LayoutError, match="'w' is known already"):
        kv.init("w", nd.ones(2))
    with pytest.raises(LayoutError, match="'x' is unknown"):
        kv.pull("x", out=nd.zeros(2))
    with pytest.raises(LayoutError, match="bool"):
        kv.init("i", nd.ones(2, dtype="bool"))
    with pytest.raises(mx.MXNetError, match="3 is not str"):
        kv.init(3, nd.ones(2))
    with pytest.raises(mx.MXNetError, match="twice"):
        kv.init(["a", "a"], [nd.ones(2), nd.ones(2)])


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


def centre_of_one_key_and_later_of_another():
    kv = mx.kv.create("dist_hybridps_elastic")
    weights, out = [nd.ones(4) * 2, nd.ones(4) * 2], nd.zeros(4)
    for key, weight in enumerate(weights):
        kv.broadcast(key, weight, out=weight)
    for step in range(6):
        for key, weight in enumerate(weights):
            kv.pushpull(key, nd.ones(4))
            weight += 1
        if step == 0:
            kv.pull(0, out=out)
            assert (out.asnumpy() == 2).all()
            kv.barrier()  # the other group has looked too
    kv.pull(1, out=out)
    assert (out.asnumpy() > 3).all(), out


def sparse_gradients_and_a_centre():
    """Each key is averaged, with the others."""
    mx.random.seed(4)
    net = gluon.nn.Sequential()
    net.add(gluon.nn.Embedding(10, 4, sparse_grad=True), gluon.nn.Dense(3, in_units=24))
    net.initialize(mx.init.Xavier())
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.05}, kvstore="dist_hybridps_elastic")
    for step in range(STEPS):
        with autograd.record():
            value = net((nd.array(images[step : step + 4]).abs() * 3).clip(0, 9).floor()).square().sum()
        value.backward()
        trainer.step(4 * workers)
    training = trainer._kvstore._training
    assert {key.averaged for key in training.keys.values()} == set(training._averaging._model)


def what_a_store_updates_is_averaged():
    """With an optimizer in the store: its weights, and the user's arrays that it never updates (running statistics)."""
    for made in ("broadcast", "init"):
        kv = mx.kv.create("dist_hybridps_elastic")
        kv.set_optimizer(mx.optimizer.create("sgd", learning_rate=1.0))
        weight, statistics = nd.zeros(2), nd.ones(2) * (rank + 1)
        weight.attach_grad()
        kv.init("w", weight) if made == "init" else kv.broadcast("w", weight, out=weight)
        kv.broadcast("s", nd.ones(2), out=statistics)
        for _ in range(9):
            statistics[:] = 10 * (rank + 1)
            kv.pushpull("w", nd.ones(2) * (4 * rank + 1), out=weight)
            kv.barrier()
        alone = -9.0 * workers * (4 * rank + 1)  # in no order of the exchanges is it this, when averaged
        assert weight.asnumpy()[0] != alone, (made, weight)
        assert statistics.asnumpy()[0] != 10 * (rank + 1), (made, statistics)


def a_sparse_table_trains_beside_a_centre():
    """What is pulled after a push is what was pushed to, not the centre."""
    kv = mx.kv.create("dist_hybridps_elastic")
    kv.set_optimizer(mx.optimizer.create("sgd", learning_rate=1.0))
    weights = [nd.zeros(2), nd.zeros(2)]
    for key, weight in enumerate(weights):
        weight.attach_grad()
        kv.broadcast(key, weight, out=weight)
    for step in range(1, 4):
        kv.pushpull(0, nd.ones(2), out=weights[0])
        kv.push(1, nd.ones(2))
        kv.pull(1, out=weights[1])
        assert weights[1].asnumpy()[0] == -workers * step, (step, weights[1])


def precise_optimizers_and_a_centre():
    precise, half = mx.optimizer.create("sgd", multi_precision=True), nd.ones(2, dtype="float16")
    kv = mx.kv.create("dist_hybridps_elastic")
    kv.set_optimizer(precise)
    with pytest.raises(HybridPSError, match="multi_precision"):
        kv.init("w", half)
    kv = mx.kv.create("dist_hybridps_elastic")
    kv.init("w", half)
    with pytest.raises(HybridPSError, match="multi_precision"):
        kv.set_optimizer(precise)


for use in sys.argv[1:]:
    globals()[use]()
    print(f"{use} is right on worker {rank}", flush=True)
