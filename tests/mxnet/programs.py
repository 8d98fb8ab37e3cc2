"""Right programs that a store must not keep waiting. Run by test_programs.py, as `programs.py NAME...`."""

import gc
import os
import resource
import sys
from pathlib import Path

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon, nd
from mxnet.contrib.amp.loss_scaler import LossScaler

from hybridps.config import world_rank, world_size

TYPE = os.environ.get("STORE", "dist_hybridps_sync")
rank = world_rank()
workers = world_size()
if TYPE == "dist_sync":  # a process may have only one such store
    store = mx.kv.create(TYPE)
    rank, workers = store.rank, store.num_workers
    mx.kv.create = mx.kvstore.create = lambda name: store


def make_store(shapes, values=1.0):
    """A store, and weights with gradients, one for each shape; their keys are 0, 1, ..."""
    kv = mx.kv.create(TYPE)
    weights = [nd.ones(shape) * values for shape in shapes]
    for key, weight in enumerate(weights):
        weight.attach_grad()
        kv.broadcast(key, weight, out=weight)
    return kv, weights


def backward(weight, factor):
    with autograd.record():
        (weight * factor).sum().backward()


def push(kv, key, weight, factor):
    backward(weight, factor)
    kv.pushpull(key, weight.grad, priority=-key)


def each_sum_is_read():
    kv, weights = make_store([(4,), (300,), (2, 3), (700,)])
    for step in range(5):
        for key, weight in enumerate(weights):
            push(kv, key, weight, step + key)
            assert (weight.grad.asnumpy() == (step + key) * workers).all(), (step, key)


def one_worker_reads():
    """A progress bar on the first worker. There are more buckets than may be under way."""
    kv, weights = make_store([(4,), (300,), (2, 3), *20 * [(700,)]])
    for step in range(5):
        for key, weight in enumerate(weights):
            push(kv, key, weight, step + key)
            if rank == 0:
                weight.grad.asnumpy()
        for key, weight in enumerate(weights):
            assert (weight.grad.asnumpy() == (step + key) * workers).all(), (step, key)


def one_worker_reads_rows():
    """The rows are pushed before the dense keys, and the first worker reads them at once."""
    kv, weights = make_store([(4,), *20 * [(700,)]])
    kv.init(100, nd.zeros((50, 3)).tostype("row_sparse"))
    for step in range(5):
        rows = nd.sparse.row_sparse_array((nd.ones((2, 3)) * (step + 1), [3, rank + 5]), shape=(50, 3))
        out = nd.sparse.zeros("row_sparse", (50, 3))
        kv.push(100, rows)
        kv.row_sparse_pull(100, out=out, row_ids=nd.array([3]))
        if rank == 0:
            assert (out.data.asnumpy() == (step + 1) * workers).all(), step
        for key, weight in enumerate(weights):
            push(kv, key, weight, step + key)
        for key, weight in enumerate(weights):
            assert (weight.grad.asnumpy() == (step + key) * workers).all(), (step, key)


def one_worker_reads_between_two_stores():
    """The keys of two stores are pushed in turn."""
    stores = [make_store([(4,), (700,), (300,)]) for _ in range(2)]
    for step in range(5):
        for key in range(3):
            for kv, weights in stores:
                push(kv, key, weights[key], step + key)
                if rank == 0:
                    weights[key].grad.asnumpy()
        for _, weights in stores:
            for key, weight in enumerate(weights):
                assert (weight.grad.asnumpy() == (step + key) * workers).all(), (step, key)


def frozen_and_thawed():
    """Parameters are frozen and thawed while the loss is read in each step."""
    mx.random.seed(3)
    net = gluon.nn.Sequential()
    net.add(gluon.nn.Dense(16, in_units=8), gluon.nn.Dense(8, in_units=16), gluon.nn.Dense(2, in_units=8))
    net.initialize()
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.01}, kvstore=TYPE, update_on_kvstore=False)
    for step in range(9):
        if step in (3, 6):
            net[1].collect_params().setattr("grad_req", "null" if step == 3 else "write")
        with autograd.record():
            loss = net(nd.ones((4, 8)) * (rank + 1)).square().sum()
        loss.backward()
        assert np.isfinite(loss.asscalar())
        before = net[1].weight.data().asnumpy()
        trainer.step(4 * workers)
        changed = (net[1].weight.data().asnumpy() != before).any()
        assert changed == (not 3 <= step < 6), step


def lars_in_module():
    """The optimiser reads a gradient before the next one is pushed."""
    data = mx.sym.Variable("data")
    hidden = mx.sym.Activation(mx.sym.FullyConnected(data, num_hidden=8, name="fc1"), act_type="relu")
    network = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(hidden, num_hidden=3, name="fc2"), name="softmax")
    module = mx.mod.Module(network)
    random = np.random.RandomState(rank)
    images, labels = random.randn(24, 6).astype("f4"), random.randint(0, 3, 24).astype("f4")
    module.fit(
        mx.io.NDArrayIter(images, labels, batch_size=4),
        kvstore=TYPE,
        optimizer="lbsgd",
        optimizer_params={"learning_rate": 0.1, "warmup_strategy": "lars", "batch_scale": 1},
        num_epoch=2,
    )
    assert all(np.isfinite(value.asnumpy()).all() for value in module.get_params()[0].values())


def keys_without_elements():
    with mx.util.np_shape(True):
        kv, weights = make_store([(3,), (0,), (2, 0), (5,)])
        for step in range(4):
            for key, weight in enumerate(weights):
                kv.pushpull(key, nd.ones(weight.shape) * step, out=weight)
            assert all((weight.asnumpy() == step * workers).all() for weight in weights)
        kv.push(1, nd.ones((0,)))
        kv.barrier()


def many_tiny_keys():
    kv, weights = make_store([(3,)] * int(os.environ.get("KEYS", "10000")), rank + 1.0)
    for weight in weights[::1000]:
        assert (weight.asnumpy() == 1).all()
    for step in range(3):
        gradients = [nd.ones(3) * step for _ in weights]
        for key, gradient in enumerate(gradients):
            kv.pushpull(key, gradient, priority=-key)
        assert all((gradient.asnumpy() == step * workers).all() for gradient in gradients)


def one_large_key():
    elements = int(os.environ.get("MEGABYTES", "256")) << 18
    kv = mx.kv.create(TYPE)
    weight, gradient = nd.ones(elements), nd.zeros(elements)
    kv.broadcast("w", weight, out=weight)
    for step in range(3):
        gradient[:] = step + rank
        kv.pushpull("w", gradient)
        want = workers * step + workers * (workers - 1) / 2
        assert float(gradient.min().asscalar()) == float(gradient.max().asscalar()) == want


def two_sets_of_keys():
    """As a GAN does: the second set is pushed when the sums of the first one were read."""
    kv, weights = make_store([(40,), (300,), (20, 3), (700,)])
    for step in range(4):
        for keys in ((0, 1), (2, 3)):
            for key in keys:
                push(kv, key, weights[key], step + key)
            for key in keys:
                assert (weights[key].grad.asnumpy() == (step + key) * workers).all(), (step, key)


def a_gradient_needs_an_earlier_sum():
    """In MXNet's engine alone: the program does not wait before the end of the step."""
    kv, _ = make_store([(4,), (4,), (4,)])
    for step in range(4):
        gradients = [nd.ones(4) * step]
        kv.pushpull(0, gradients[0])
        for key in (1, 2):
            gradients.append(gradients[-1] + 1)
            kv.pushpull(key, gradients[-1])
        want = step * workers
        for gradient in gradients:
            assert (gradient.asnumpy() == want).all(), step
            want = (want + 1) * workers


def initial_values_are_read_at_once():
    kv = mx.kv.create(TYPE)
    for key in range(4):
        weight = nd.ones(3 + key) * (rank + 1)
        kv.broadcast(key, weight, out=weight)
        if rank == 0 or key == 2:
            assert (weight.asnumpy() == 1).all()


def infinite_gradients_scale_the_loss_down():
    """Dynamic loss scaling sees what is not finite in the sums, on all workers."""
    net = gluon.nn.Dense(2, in_units=3)
    net.initialize(mx.init.One())
    parameters = list(net.collect_params().values())
    trainer = gluon.Trainer(parameters, "sgd", {"learning_rate": 0.0}, kvstore=TYPE, update_on_kvstore=False)
    scaler, overflows = LossScaler(), []
    for step in range(6):
        with autograd.record():
            loss = net(nd.ones((1, 3))).sum()
        loss.backward()
        if step in (1, 4) and rank == workers - 1:
            parameters[0].grad()[:] = np.inf if step == 1 else np.nan
        trainer.allreduce_grads()
        overflows.append(scaler.has_overflow(parameters))
        trainer.update(1)
    assert overflows == [False, True, False, False, True, False], overflows


def many_trainers():
    """A store that is not used any more leaves nothing behind."""
    figures = []
    for number in range(50):
        net = gluon.nn.Dense(64, in_units=1024)
        net.initialize()
        trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, kvstore=TYPE)
        for _ in range(2):
            with autograd.record():
                loss = net(nd.ones((2, 1024))).sum()
            loss.backward()
            trainer.step(2)
        nd.waitall()
        del trainer, net, loss
        if number in (19, 49):  # by the first, MXNet's memory pools are full
            gc.collect()
            mx.kv.create(TYPE).barrier()
            rss = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
            figures.append((len(os.listdir("/proc/self/fd")), rss))
    (files, rss), (later_files, later_rss) = figures
    print(f"files {files} -> {later_files}, memory {rss >> 20} -> {later_rss >> 20} MB", flush=True)
    assert later_files <= files + 8
    assert later_rss < rss + (16 << 20)


for program in sys.argv[1:]:
    globals()[program]()
    print(f"{program} is right on worker {rank}", flush=True)
