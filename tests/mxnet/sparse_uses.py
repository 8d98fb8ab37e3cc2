"""Row-sparse gradients and weights as users have them, each held against MXNet's `local` with all workers' data.

The names of the uses are given as arguments.
"""

import functools
import itertools
import os
import re
import sys

import mxnet as mx
import numpy as np
import pytest
import sparse_networks
from mxnet import nd
from row_sparse import OPTIMIZERS, STEPS, TYPE, close, first, gradients, optimizer, rank, stored, workers


def updates():
    """Lazy or not, of dense and of row-sparse weights, one push after the other without a wait."""
    shape = (23, 3)
    for name, lazy, sparse in itertools.product(OPTIMIZERS, (True, False), (False, True)):
        if not lazy and (name in ("adagrad", "ftrl") or sparse):
            continue  # MXNet has no such choice there
        more = {} if name in ("adagrad", "ftrl") else {"lazy_update": lazy}
        weight = nd.array(np.random.default_rng(1).standard_normal(shape))
        stores = [mx.kv.create(TYPE), mx.kv.create("local")]
        for kv in stores:
            kv.init("w", weight.tostype("row_sparse") if sparse else weight)
            kv.set_optimizer(optimizer(name, **more))
        for step in range(STEPS):
            every = gradients(shape, step)
            stores[0].push("w", every[rank])
            stores[1].push("w", every)
        got, want = (stored(kv, "w", shape, sparse) for kv in stores)
        close(got, want, (name, lazy, sparse))
        assert np.abs(got - weight.asnumpy()).max() > 0.01


def sums():
    """Without an optimizer: the sum replaces what is stored, as rows."""
    shapes = [(23,), (23, 3), (11, 2, 3), (5000, 7)]
    for number, (shape, dtype) in enumerate(
        itertools.product(shapes, ("float32", "float16", "float64", "int32", "uint8"))
    ):
        local = mx.kv.create("local")
        for kv in (first, local):
            kv.init(number, nd.ones(shape, dtype=dtype).tostype("row_sparse"))
        for step in range(STEPS):
            every = gradients(shape, step, dtype)
            first.push(number, [every[rank], every[rank]])
            local.push(number, [*every, *every])
            got, want = (nd.sparse.zeros("row_sparse", shape, dtype=dtype) for _ in range(2))
            for kv, out in ((first, got), (local, want)):
                kv.pull(number, out=out, ignore_sparse=False)
            np.testing.assert_array_equal(got.indices.asnumpy(), want.indices.asnumpy())
            close(got.data.asnumpy(), want.data.asnumpy(), (shape, dtype, step), dtype)


def a_weight_is_pulled_into(pulls):
    """By hand, as Gluon does it: `pulls` says after which pushes the weight is pulled."""
    shape, results = (23, 3), []
    for kind in (TYPE, "local"):
        kv, weight = mx.kv.create(kind), nd.array(np.random.default_rng(1).standard_normal(shape))
        kv.set_optimizer(optimizer("adam"))
        weight.attach_grad(stype="row_sparse")
        kv.broadcast("w", weight, out=weight)
        seen = []
        for step, pull in enumerate(pulls):
            every = gradients(shape, step % STEPS)
            kv.push("w", every if kind == "local" else every[rank])
            if pull:
                kv.pull("w", out=weight)
                seen.append(weight.asnumpy())
        results.append(seen)
    for step, (got, want) in enumerate(zip(*results, strict=True)):
        close(got, want, (pulls, step))


def pulls():
    a_weight_is_pulled_into([True] * 8)
    a_weight_is_pulled_into([False, True, True, True, True, False, True, False, False, True])


def changing():
    """Dense and row-sparse gradients of one key, with and without an optimizer."""
    shape = (23, 3)
    for updates, sparse in itertools.product((False, True), (False, True)):
        stores = [mx.kv.create(TYPE), mx.kv.create("local")]
        for kv in stores:
            kv.init("w", nd.ones(shape).tostype("row_sparse") if sparse else nd.ones(shape))
            if updates:
                kv.set_optimizer(optimizer("momentum"))
        for step in range(STEPS):
            every = gradients(shape, step)
            if step % 2:
                every = [each.tostype("default") + 1 for each in every]
            stores[0].push("w", every[rank])
            stores[1].push("w", functools.reduce(nd.sparse.add, every))  # it refuses the change with several arrays
            got, want = nd.zeros(shape), nd.zeros(shape)
            for kv, out in zip(stores, (got, want), strict=True):
                kv.pull("w", out=out)
            close(got.asnumpy(), want.asnumpy(), (updates, sparse, step))


def beside():
    """The first gradient of a key is row-sparse, when another one has had a dense one and servers may have both."""
    shape, stores = (23, 3), [mx.kv.create(TYPE), mx.kv.create("local")]
    for kv in stores:
        kv.set_optimizer(optimizer("momentum"))
        kv.init(["a", "b"], [nd.ones(shape)] * 2)
    for step in range(STEPS):
        every = gradients(shape, step)
        stores[0].push("a", nd.ones(shape) * step)
        stores[1].push("a", nd.ones(shape) * step * workers)
        stores[0].push("b", every[rank])
        stores[1].push("b", every)
    for key in "ab":
        got, want = (stored(kv, key, shape, False) for kv in stores)
        close(got, want, key)


def order():
    """A gradient that is pushed before the others of a step is summed after them: it is the last that backward has."""
    kv = mx.kv.create(TYPE)
    shape, posted, post = (23, 3), [], kv._schedule.post
    kv._schedule.post = lambda item: (posted.append(item.title), post(item))
    kv.init([0, 1, 2], [nd.zeros(shape), nd.zeros(4), nd.zeros(5)])
    for step in range(STEPS):
        kv.push(0, gradients(shape, step)[rank])
        for key, size in ((1, 4), (2, 5)):
            value = nd.full(size, step)
            kv.pushpull(key, value)
            assert (value.asnumpy() == workers * step).all()
    rows = [number for number, title in enumerate(posted) if "sum of the rows" in title]
    begins = [posted.index(f"step {step}") for step in range(STEPS)]
    assert [one > other for one, other in zip(rows, begins, strict=True)] == [False] * 3 + [True] * 3, posted


def memory():
    """Of sums that are used no more, none is kept."""
    shape, key = (1000, 64), 4000
    gradient = nd.ones(shape).tostype("row_sparse")
    first.init(key, gradient)
    sizes = []
    for step in range(300):
        first.push(key, gradient)
        nd.waitall()
        if step in (50, 299):
            with open("/proc/self/statm") as file:
                sizes.append(int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE"))
    assert sizes[1] - sizes[0] < 50 * 1000 * 64 * 4, sizes


def refused():
    """Wrong calls that every worker sees at once."""
    kv, shape = mx.kv.create(TYPE), (6, 2)
    kv.init("r", nd.ones(shape).tostype("row_sparse"))
    out, given = nd.sparse.zeros("row_sparse", shape), gradients(shape, 3)[0]
    for call, said in (
        (lambda: kv.row_sparse_pull("r", out=out, row_ids=nd.array([2, 6])), "row 6 is asked for of an array of 6"),
        (lambda: kv.row_sparse_pull("r", out=out, row_ids=nd.array([-1, 2])), "row -1"),
        (lambda: kv.row_sparse_pull("r", out=nd.zeros(shape), row_ids=nd.array([1])), "row-sparse arrays only"),
        (lambda: kv.push("r", gradients((7, 2), 3)[0]), "'r' has the shape (7, 2), but the key has (6, 2)"),
        (lambda: kv.push("r", nd.ones(shape).tostype("csr")), "'r' is of storage type csr"),
    ):
        with pytest.raises(mx.MXNetError, match=re.escape(said)):
            call()
    kv.push("r", given)
    close(stored(kv, "r", shape, False), workers * given.asnumpy(), "afterwards")


def rows_after_dense():
    """Servers that have updated a key are not given rows of it."""
    kv = mx.kv.create(TYPE)
    kv.set_optimizer(optimizer("momentum"))
    kv.init("e", nd.ones((6, 2)))
    kv.push("e", nd.ones((6, 2)))
    with pytest.raises(mx.MXNetError, match="'e' has a row-sparse gradient after dense ones"):
        kv.push("e", gradients((6, 2), 3)[rank])


def one_pushes_dense():
    kv = mx.kv.create(TYPE)
    kv.init("d", nd.ones((6, 2)))
    kv.push("d", nd.ones((6, 2)) if rank else gradients((6, 2), 3)[0])
    nd.waitall()


def a_row_too_many():
    kv = mx.kv.create(TYPE)
    kv.init("t", nd.ones((6, 2)))
    ids = [1, 6] if rank else [1, 5]
    kv.push("t", nd.sparse.row_sparse_array((nd.ones((2, 2)), ids), shape=(6, 2)))
    nd.waitall()


for use in sys.argv[1:]:
    (globals().get(use) or getattr(sparse_networks, use))()
    print(f"{use} is right on worker {rank}", flush=True)
