"""Optimizer states that some workers have no file of. Started with a folder, and names of programs here."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon, nd

from hybridps.config import world_rank, world_size
from hybridps.kvstore.updates import reading

reading.PART_BYTES = 256  # files of several parts
rank = world_rank()
group_size = world_size() // int(os.environ["HYBRIDPS_GROUPS"])
leader = rank - rank % group_size
TYPE = "dist_hybridps_sync"
STEPS = 3


def make(optimizer, store=TYPE, **settings):
    mx.random.seed(7)
    net = gluon.nn.Dense(3, in_units=5)
    net.initialize(mx.init.Xavier())
    params = net.collect_params()
    return net, gluon.Trainer(params, optimizer, settings, kvstore=mx.kv.create(store), update_on_kvstore=True)


def train(net, trainer, steps=STEPS):
    for step in range(steps):
        data = nd.array(np.random.default_rng([step, rank]).standard_normal((4, 5)))
        with autograd.record():
            loss = (net(data) ** 2).sum()
        loss.backward()
        trainer.step(8)
    return net.weight.data().asnumpy()


def check_raises(trainer, path, worker):
    try:
        trainer.load_states(str(path))
    except FileNotFoundError as error:
        said = str(error)
    else:
        raise AssertionError(f"{path} was loaded")
    assert worker is None or f"worker {worker} cannot read it" in said, said
    assert "none" in said, said


def missing_at_first(folder):
    """The same before the first step, where all take the first worker's file."""
    for _ in range(2):
        net, trainer = make("sgd", learning_rate=0.01)
        check_raises(trainer, folder / "none", 0)
        assert np.isfinite(train(net, trainer)).all()
        trainer._kvstore.barrier()


def missing(folder):
    """Nobody has the file; whoever goes on without it trains, and so do the others. A later file is loaded."""
    for optimizer in ("sgd", "adam", "rmsprop"):
        net, trainer = make(optimizer, learning_rate=0.01)
        train(net, trainer)
        for _ in range(2):
            check_raises(trainer, folder / "none", None if optimizer == "rmsprop" else leader)
            assert np.isfinite(train(net, trainer)).all()
        path = folder / f"{optimizer}-{rank if optimizer == 'rmsprop' else 0}"  # all hosts share this folder
        trainer.save_states(str(path))
        trainer._kvstore.barrier()
        trainer.load_states(str(path))
        assert np.isfinite(train(net, trainer)).all()


def only_first(folder, store=TYPE):
    """All continue from the first worker's file, with its counts of updates, as if nothing had happened."""
    settings = {"lr_scheduler": mx.lr_scheduler.FactorScheduler(step=2, factor=0.7, base_lr=0.05)}
    net, trainer = make("adam", store, **settings)
    train(net, trainer)
    path = folder / f"host-{rank}" / "states"
    if rank == 0:
        path.parent.mkdir()
        trainer.save_states(str(path))
    values = [parameter.data().copy() for parameter in net.collect_params().values()]
    trainer._kvstore.barrier()
    expected = train(net, trainer)
    net, trainer = make("adam", store, **settings)
    for parameter, value in zip(net.collect_params().values(), values, strict=True):
        parameter.set_data(value)
    trainer.load_states(str(path))
    assert set(trainer._optimizer._index_update_count.values()) == {STEPS}
    found = train(net, trainer)
    if store == TYPE:
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert set(trainer._optimizer._index_update_count.values()) == {2 * STEPS}


def only_first_async(folder):
    only_first(folder, "dist_hybridps_async")


def other_batches(folder):
    """A Trainer saves and loads before its first step, which divides by another number than the file's last."""
    for optimizer in ("sgd", "rmsprop"):
        changes = {}
        for batch in (8, 16):
            net, trainer = make(optimizer, learning_rate=0.01)
            path = folder / f"{optimizer}-{rank if optimizer == 'rmsprop' else 0}"
            before = net.weight.data().asnumpy()
            trainer.save_states(str(path)) if batch == 8 else trainer.load_states(str(path))
            with autograd.record():
                loss = (net(nd.ones((4, 5))) ** 2).sum()
            loss.backward()
            trainer.step(batch)
            changes[batch] = net.weight.data().asnumpy() - before
            trainer._kvstore.barrier()
        if optimizer == "sgd":
            np.testing.assert_allclose(2 * changes[16], changes[8], rtol=1e-4, atol=1e-6)


def own_devices(folder):
    """Each worker has a device of another number. One saves, all load: as one process with `local`."""

    def make_sparse(kvstore, context, optimizer):
        net = gluon.nn.Embedding(4, 2, sparse_grad=True)
        net.initialize(mx.init.One(), ctx=context)
        return net, gluon.Trainer(net.collect_params(), optimizer, {"learning_rate": 0.1}, kvstore=kvstore)

    def train_sparse(net, trainer, context, workers, steps):
        for step in steps:
            with autograd.record():
                loss = (net(nd.array([0, 1, 2, 3], ctx=context)) * (step + 1)).sum()
            loss.backward()
            trainer.step(workers)
        return net.weight.data(context)

    workers = world_size()
    for optimizer in ("adam", "nadam", "adamax"):
        expected = train_sparse(*make_sparse("local", mx.cpu(0), optimizer), mx.cpu(0), 1, range(6)).asnumpy()
        context, path = mx.cpu(rank), str(folder / f"{optimizer}-of-0")
        net, trainer = make_sparse(mx.kv.create(TYPE), context, optimizer)
        weights = train_sparse(net, trainer, context, workers, range(3))
        if rank == 0:
            trainer.save_states(path)
        trainer._kvstore.barrier()
        net, trainer = make_sparse(mx.kv.create(TYPE), context, optimizer)
        net.weight.set_data(weights)
        trainer.load_states(path)
        found = train_sparse(net, trainer, context, workers, range(3, 6)).asnumpy()
        np.testing.assert_allclose(found, expected, rtol=1e-5, err_msg=optimizer)


if __name__ == "__main__":
    for program in sys.argv[2:]:
        files = Path(sys.argv[1], program)
        files.mkdir(exist_ok=True)
        globals()[program](files)
        print(f"{program} is right", flush=True)
