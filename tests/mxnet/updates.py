"""Programs whose weights the servers update. Run by test_server_updates.py, as `updates.py FOLDER PROGRAM...`."""

import os
import sys
import time
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon, nd

from hybridps.config import world_rank
from hybridps.kvstore.updates.states_file import states_to_bytes

TYPE = os.environ.get("STORE", "dist_hybridps_sync")
WORKERS = int(os.environ.get("WORKERS", "1"))
"""Workers whose gradients are pushed: under `local` by one process."""

rank = world_rank()
SHAPES = {3: (7, 5), 5: (300,), 6: (1,), 9: (40, 11), 11: (1000,)}
STEPS = 7


def schedule(base):
    return mx.lr_scheduler.FactorScheduler(step=2, factor=0.7, base_lr=base)


def optimizers():
    common = {"rescale_grad": 0.5, "wd": 0.01}
    yield "sgd", lambda: mx.optimizer.SGD(learning_rate=np.float64(0.1), **common)
    yield "momentum", lambda: mx.optimizer.SGD(lr_scheduler=schedule(0.1), momentum=0.9, clip_gradient=0.6, **common)
    yield "nag", lambda: mx.optimizer.NAG(learning_rate=0.1, momentum=0.8, clip_gradient=0.6, **common)
    yield "adam", lambda: mx.optimizer.Adam(lr_scheduler=schedule(0.05), clip_gradient=0.6, **common)
    yield "lamb", lambda: mx.optimizer.LAMB(learning_rate=0.05, **common)
    yield "derived", lambda: Derived(learning_rate=0.1, **common)


class Derived(mx.optimizer.SGD):
    """One that servers cannot know."""

    def update(self, index, weight, grad, state):
        super().update(index, weight, 2 * grad, state)

    def update_multi_precision(self, index, weight, grad, state):
        super().update_multi_precision(index, weight, 2 * grad, state)


def gradient(key, step, worker):
    return np.random.default_rng([key, step, worker]).standard_normal(SHAPES[key]).astype("float32")


def push(store, key, step):
    workers = range(WORKERS) if TYPE == "local" else [rank]
    store.push(key, [nd.array(gradient(key, step, worker)) for worker in workers], priority=-key)


def pushed(folder):
    """Each optimizer, with keys that have factors of their own, some of which are pushed in some steps only."""
    for name, make in optimizers():
        store, optimizer = mx.kv.create(TYPE), make()
        optimizer.set_lr_mult({5: 0.5})
        optimizer.set_wd_mult({9: 0.0})
        store.set_optimizer(optimizer)
        outs = {key: nd.zeros(shape) for key, shape in SHAPES.items()}
        for key in SHAPES:
            store.init(key, nd.array(gradient(key, 99, 0)))
        for step in range(STEPS):
            for key in SHAPES:
                if key == 6 and step % 2:
                    continue
                push(store, key, step)
                store.pull(key, out=outs[key], priority=-key)
            if step == 3:
                optimizer.rescale_grad = np.float32(0.25)
        if TYPE != "local" and store._job.servers:
            at_servers = store._training.key("3").at_servers is not None
            assert at_servers == (name in ("sgd", "momentum", "nag", "adam")), name
        np.savez(f"{folder}/pushed-{name}-{TYPE}-{rank}.npz", **{str(key): out.asnumpy() for key, out in outs.items()})


def trained(folder):
    """The same by a Trainer, on parts of a batch, with a learning rate that the script changes."""
    for name, make in optimizers():
        mx.random.seed(1)
        network = gluon.nn.HybridSequential()
        network.add(gluon.nn.Dense(33, activation="tanh", in_units=20), gluon.nn.Dense(5, in_units=33))
        network.initialize(mx.init.Xavier())
        optimizer = make()
        if name in ("sgd", "nag"):
            network[0].weight.lr_mult = 0.5
        options = {"kvstore": mx.kv.create(TYPE), "update_on_kvstore": True}
        trainer = gluon.Trainer(network.collect_params(), optimizer, **options)
        per_worker = 4
        for step in range(STEPS):
            rng = np.random.default_rng(step)
            data = nd.array(rng.standard_normal((per_worker * WORKERS, 20)))
            if TYPE != "local":
                data = data[rank * per_worker : (rank + 1) * per_worker]
            with autograd.record():
                loss = (network(data) ** 2).sum()
            loss.backward()
            trainer.step(per_worker * WORKERS)
            if step == 3 and optimizer.lr_scheduler is None:
                trainer.set_learning_rate(0.02)
        values = {str(number): each.data().asnumpy() for number, each in enumerate(network.collect_params().values())}
        np.savez(f"{folder}/trained-{name}-{TYPE}-{rank}.npz", **values)


def set_anew(folder):
    """A second optimizer goes on from the weights, with a state of its own."""
    store = mx.kv.create(TYPE)
    for key in SHAPES:
        store.init(key, nd.array(gradient(key, 99, 0)))
    outs = {key: nd.zeros(shape) for key, shape in SHAPES.items()}
    for number, make in enumerate(
        [
            lambda: mx.optimizer.SGD(learning_rate=0.1, momentum=0.9),
            lambda: mx.optimizer.SGD(learning_rate=0.05, momentum=0.9),
            lambda: mx.optimizer.Adam(learning_rate=0.05),
            lambda: mx.optimizer.LAMB(learning_rate=0.05),
            lambda: mx.optimizer.NAG(learning_rate=0.05, momentum=0.9),
        ]
    ):
        store.set_optimizer(make())
        for step in range(3):
            for key in SHAPES:
                push(store, key, 10 * number + step)
        for key in SHAPES:
            store.pull(key, out=outs[key])
    np.savez(f"{folder}/set_anew-sgd-{TYPE}-{rank}.npz", **{str(key): out.asnumpy() for key, out in outs.items()})


def resumed(folder):
    """The states of an optimizer are saved and loaded, before the first step and later."""
    for name, make in optimizers():
        path = f"{folder}/states-{name}-{TYPE}-{rank}"
        stores = [mx.kv.create(TYPE) for _ in range(2)]
        outs = {key: nd.zeros(shape) for key, shape in SHAPES.items()}
        for store in stores:
            store.set_optimizer(make())
        for step in range(2 * STEPS):
            store = stores[step >= STEPS]
            if step in (0, STEPS):
                for key in SHAPES:
                    store.init(key, nd.array(gradient(key, 99, 0)) if step == 0 else outs[key])
            if step == STEPS:
                stores[0].save_optimizer_states(path, dump_optimizer=True)
                stores[0]._barrier()
                store.load_optimizer_states(path)
            if step == STEPS + 2:
                store.load_optimizer_states(path)
            for key in SHAPES:
                push(store, key, step)
                store.pull(key, out=outs[key])
        np.savez(f"{folder}/resumed-{name}-{TYPE}-{rank}.npz", **{str(key): out.asnumpy() for key, out in outs.items()})


def push_summed(store, key, step, kind="default"):
    """One array: the local store takes several of one kind only, once it has seen them."""
    workers = range(WORKERS) if TYPE == "local" else [rank]
    store.push(key, nd.array(sum(gradient(key, step, worker) for worker in workers)).tostype(kind))


def all_that_workers_may(folder):
    """What only servers refuse: other kinds of gradients and optimizers midway, and any number."""
    for name, momentum, use in [
        ("rows", 0.9, rows_after_dense_ones),
        ("anew", 0.9, an_optimizer_from_a_file),
        ("ascent", 0.0, numbers_below_zero),
    ]:
        store, path = mx.kv.create(TYPE), f"{folder}/{name}-{TYPE}-{rank}"
        outs = {key: nd.zeros(shape) for key, shape in SHAPES.items()}
        store.set_optimizer(mx.optimizer.SGD(learning_rate=0.1, momentum=momentum, rescale_grad=0.5))
        for key in SHAPES:
            store.init(key, nd.array(gradient(key, 99, 0)))
        if name == "anew":  # before the first push too
            an_optimizer_from_a_file(store, path)
        for step in range(3):
            for key in SHAPES:
                push_summed(store, key, step)
        use(store, path)
        for step in range(3, 6):
            for key in SHAPES:
                push_summed(store, key, step)
        for key in SHAPES:
            store.pull(key, out=outs[key])
        np.savez(f"{path}.npz", **{str(key): out.asnumpy() for key, out in outs.items()})


def rows_after_dense_ones(store, path):
    """With the states of the dense ones, also when they are saved and loaded."""
    for step in (7, 8):
        push_summed(store, 9, step, "row_sparse")
    store.save_optimizer_states(path)
    store.load_optimizer_states(path)


def an_optimizer_from_a_file(store, path):
    """The file of another store brings its optimizer along, with another rule."""
    for make in (
        lambda: mx.optimizer.SGD(learning_rate=0.05),
        lambda: mx.optimizer.SGD(learning_rate=0.05, momentum=0.8),
    ):
        other = mx.kv.create(TYPE)
        other.set_optimizer(make())
        for key in SHAPES:
            other.init(key, nd.array(gradient(key, 98, 0)))
            push_summed(other, key, 20)
        other.save_optimizer_states(path, dump_optimizer=True)
        store.load_optimizer_states(path)
        for key in SHAPES:
            push_summed(store, key, 21)


def numbers_below_zero(store, path):
    """Minus rates ascend, and a clip of less than 0 is none."""
    optimizer = store._updater.optimizer
    optimizer.set_lr_mult({5: -1.0, 11: -0.5})
    optimizer.clip_gradient = -1.0


def random_numbers(folder):
    """An optimizer that draws random numbers makes the same weights on all workers."""
    mx.random.seed(rank)
    store, out = mx.kv.create(TYPE), nd.zeros(300)
    store.set_optimizer(mx.optimizer.SGLD(learning_rate=0.1))
    store.init(5, nd.ones(300))
    for step in range(3):
        push(store, 5, step)
    store.pull(5, out=out)
    seen = nd.zeros((WORKERS, 300))
    seen[rank] = out
    store.init(6, nd.zeros((WORKERS, 300)))
    other = mx.kv.create(TYPE)
    other.init(6, seen)
    other.push(6, seen)
    other.pull(6, out=seen)
    assert (seen.asnumpy() == out.asnumpy()).all()
    drawn = nd.zeros((WORKERS, 1))
    drawn[rank] = mx.nd.random.uniform()
    other.init(7, drawn)
    other.push(7, drawn)
    other.pull(7, out=drawn)
    assert len(set(drawn.asnumpy().ravel())) == WORKERS, "workers go on with random numbers of their own"


class Clipping(mx.optimizer.Updater):
    """An updater that is not MXNet's own, though it has an optimizer."""

    def __call__(self, index, grad, weight):
        super().__call__(index, grad.clip(-0.01, 0.01), weight)


def updaters(folder):
    """Updates of workers: by functions, also those that have optimizers."""
    store, out = mx.kv.create(TYPE), nd.zeros(4)
    store.init(1, nd.ones(4))
    store._set_updater(Clipping(mx.optimizer.SGD(learning_rate=1.0)))
    store.push(1, nd.ones(4))
    store.pull(1, out=out)
    np.testing.assert_allclose(out.asnumpy(), 0.99, rtol=1e-6)
    store._set_updater(Stateless())
    store.save_optimizer_states(f"{folder}/stateless-{rank}")
    assert Path(f"{folder}/stateless-{rank}").read_bytes() == b"none"


class Stateless:
    """A function with what `save_optimizer_states` asks for, and no more."""

    def __call__(self, key, gradient, stored):
        pass

    def get_states(self, dump_optimizer=False):
        return b"none"


def by_hand(folder):
    store, out = mx.kv.create(TYPE), nd.zeros(4)
    store.set_optimizer(mx.optimizer.SGD(learning_rate=0.1))
    store.init(1, nd.ones(4))
    store.push(1, nd.ones(4))
    store.pull(1, out=out)
    np.testing.assert_allclose(out.asnumpy(), 1 - 0.1 * WORKERS, rtol=1e-6)


def pulls_of_one(folder):
    """In a group of several workers one may pull alone what came with a push."""
    store, out = mx.kv.create("dist_hybridps_async"), nd.zeros(4)
    store.set_optimizer(mx.optimizer.SGD(learning_rate=0.1))
    for key in (1, 2):
        store.init(key, nd.ones(4))
    for _ in range(4):
        for key in (1, 2):
            store.push(key, nd.ones(4))
        if rank == 0:
            store.pull(1, out=out)
            out.wait_to_read()
    mx.nd.waitall()


def schedules_from_the_middle(folder):
    """A schedule that begins in the middle counts on from there, by as many updates as there are groups."""
    seen = []

    class Noting(mx.lr_scheduler.LRScheduler):
        def __call__(self, num_update):
            seen.append(num_update)
            return 0.1

    store = mx.kv.create("dist_hybridps_async")
    store.set_optimizer(mx.optimizer.SGD(lr_scheduler=Noting(), begin_num_update=100))
    store.init(1, nd.ones(4))
    for _ in range(3):
        store.push(1, nd.ones(4))
    mx.nd.waitall()
    assert seen == [100 + step * WORKERS for step in (1, 2, 3)], seen


def adam_goes_on(folder):
    """What is saved by asynchronous workers and loaded again goes on as it would have, with Adam's count too."""
    outs = []
    for interrupted in (False, True):
        store, out = mx.kv.create("dist_hybridps_async"), nd.zeros(300)
        store.set_optimizer(mx.optimizer.Adam(learning_rate=0.05))
        store.init(5, nd.ones(300))
        for step in range(6):
            if interrupted and step == 3:
                store.save_optimizer_states(f"{folder}/adam", dump_optimizer=True)
                store = mx.kv.create("dist_hybridps_async")
                store.set_optimizer(mx.optimizer.Adam(learning_rate=0.05))
                store.init(5, out)
                store.load_optimizer_states(f"{folder}/adam")
            store.push(5, nd.array(gradient(5, step, 0)))
            store.pull(5, out=out)
        outs.append(out.asnumpy())
    np.testing.assert_allclose(*outs, rtol=1e-5, atol=1e-6)


def states_that_do_not_fit(folder):
    """A file of another network, or a pickle, is refused on all workers, before and after the first push; all go on."""
    own = mx.optimizer.get_updater(mx.optimizer.AdaGrad())
    own.states[5] = nd.ones((8, 5))
    wrong, pickled = f"{folder}/wrong-{rank}", f"{folder}/pickled-{rank}"
    Path(pickled).write_bytes(own.get_states())
    Path(wrong).write_bytes(states_to_bytes(own, dump_optimizer=False))
    store, out = mx.kv.create("dist_hybridps_async"), nd.zeros((7, 5))
    store.set_optimizer(mx.optimizer.AdaGrad(learning_rate=0.1))
    store.init(5, nd.ones((7, 5)))
    for _ in range(2):
        with pytest.raises(mx.MXNetError, match="key 5 has states of the shapes"):
            store.load_optimizer_states(wrong)
        with pytest.raises(mx.MXNetError, match=f"{pickled} is not a file of optimizer states"):
            store.load_optimizer_states(pickled)
        store.push(5, nd.ones((7, 5)))
        store.pull(5, out=out)
        assert (out.asnumpy() < 1).all()
    if rank == 0:  # a file that only the first worker has
        store.save_optimizer_states(f"{folder}/of-{rank}")
    store.load_optimizer_states(f"{folder}/of-{rank}")
    store.push(5, nd.ones((7, 5)))
    store.pull(5, out=out)
    assert np.isfinite(out.asnumpy()).all()


def asynchronous(folder):
    """Every worker's gradients count once, whenever they come; all read the same in the end."""
    store = mx.kv.create("dist_hybridps_async")
    assert store.type == "dist_hybridps_async"
    assert store.num_workers == WORKERS
    store.set_optimizer(mx.optimizer.SGD(learning_rate=0.1, rescale_grad=0.5))
    expected = {key: gradient(key, 99, 0) for key in SHAPES}
    for key, value in expected.items():
        store.init(key, nd.array(value))
    for step in range(STEPS):
        for key, shape in SHAPES.items():
            store.push(key, nd.array(gradient(key, step, rank)), priority=-key)
            out = nd.zeros(shape)
            store.pull(key, out=out)
            for worker in range(WORKERS):
                expected[key] = expected[key] - 0.05 * gradient(key, step, worker)
        if rank == 0:
            time.sleep(0.01)
    store.barrier()
    for key, shape in SHAPES.items():
        out = nd.zeros(shape)
        store.pull(key, out=out)  # what came with the last update
        store.pull(key, out=out)  # what the servers have now
        np.testing.assert_allclose(out.asnumpy(), expected[key], rtol=0, atol=1e-5)


def refused(folder):
    """What asynchronous SGD has no meaning for."""
    store = mx.kv.create("dist_hybridps_async")
    store.init(1, nd.ones(4))
    for call, said in (
        (lambda: store.push(1, nd.ones(4)), "call set_optimizer first"),
        (lambda: store.pushpull(1, nd.ones(4)), "call set_optimizer first"),
        (lambda: store.set_optimizer(Derived()), "cannot have Derived"),
        (lambda: store._set_updater(lambda key, new, stored: None), "cannot have function"),
    ):
        with pytest.raises(mx.MXNetError, match=said):
            call()
    store.init(2, nd.ones(4, dtype="int32"))
    store.set_optimizer(mx.optimizer.SGD(learning_rate=0.1))
    with pytest.raises(mx.MXNetError, match="key '2' of int32 cannot be updated at the servers"):
        store.push(2, nd.ones(4, dtype="int32"))


def equal_gradients(folder):
    """Two groups that bring the same gradients: the order of the updates does not matter."""
    for dtype, make in (
        ("float32", lambda: mx.optimizer.LARS(learning_rate=0.05, momentum=0.9, wd=0.01)),
        ("float32", lambda: mx.optimizer.LBSGD(learning_rate=0.05, batch_scale=3, warmup_strategy="lars")),
        ("float16", lambda: mx.optimizer.SGD(learning_rate=1e-4, momentum=0.9, multi_precision=True)),
        ("float16", lambda: mx.optimizer.SGD(learning_rate=0.01, momentum=0.9)),
    ):
        store, own = mx.kv.create("dist_hybridps_async"), mx.optimizer.get_updater(make())
        store.set_optimizer(make())
        expected, out = nd.ones((40, 11), dtype=dtype), nd.zeros((40, 11), dtype=dtype)
        store.init(1, expected)
        store.init(2, nd.ones(3))  # of another kind
        pushed = nd.array(gradient(9, 0, 0), dtype=dtype)
        for _ in range(3):
            store.push(1, pushed)
            store.push(2, nd.ones(3))
        store.pull(1, out=out)
        store.barrier()
        store.pull(1, out=out)
        for _ in range(2 * 3):
            own(1, pushed.copy(), expected)
        np.testing.assert_allclose(out.asnumpy(), expected.asnumpy(), rtol=2**-10, atol=1e-4)


def optimizer_of_one(folder):
    """The first worker alone sets an optimizer: wrong, and so an error."""
    store = mx.kv.create(TYPE)
    store.init(1, nd.ones(4))
    if rank == 0:
        store.set_optimizer(mx.optimizer.SGD(learning_rate=0.1))
    store.push(1, nd.ones(4))
    mx.nd.waitall()


def different_rates(folder):
    """The second group has another learning rate: wrong, and so an error."""
    store = mx.kv.create(TYPE)
    store.set_optimizer(mx.optimizer.SGD(learning_rate=0.1 + rank))
    store.init(1, nd.ones(4))
    store.push(1, nd.ones(4))
    mx.nd.waitall()


if __name__ == "__main__":
    for program in sys.argv[2:]:
        globals()[program](sys.argv[1])
        print(f"{program} is right", flush=True)
