"""Programs whose arrays live in memory of the store. Run by test_in_place.py, as `in_place.py NAME...`."""

import faulthandler
import gc
import os
import sys
from collections import Counter
from contextlib import nullcontext
from unittest.mock import patch

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon, nd
from mxnet.ndarray import NDArray

from hybridps.config import world_rank, world_size
from hybridps.kvstore import averaged_weights
from hybridps.kvstore.gradient_arrays import UsualSums
from hybridps.kvstore.moved import move_weights
from hybridps.step import schedule, votes
from hybridps.step.timing import TimeSpent

faulthandler.enable()  # after MXNet's import, which sets a handler of its own that names no function

TYPE = os.environ.get("STORE", "dist_hybridps_sync")
SETTLED = 6
"""From this step on arrays stay where they are."""

rank, workers = world_rank(), world_size()
copied = Counter()
"""Copies of the program and of the store, by the number of their elements."""

moved = Counter()
"""The weights that were moved."""

_copyto = NDArray.copyto


def _counting(self, other):
    copied[self.size] += 1
    return _copyto(self, other)


NDArray.copyto = _counting


class Convolutions(gluon.nn.HybridSequential):
    """A network whose weights oneDNN keeps in another order when it only infers."""

    def __init__(self):
        super().__init__()
        mx.random.seed(5)
        self.add(
            gluon.nn.Conv2D(64, 3, in_channels=16, activation="relu"),
            gluon.nn.Conv2D(20, 3, in_channels=64),
            gluon.nn.Dense(8, in_units=20 * 16),
        )
        self.initialize(mx.init.Xavier())
        self.hybridize()

    @property
    def parameters(self):
        return list(self.collect_params().values())


class Normalised(Convolutions):
    """A network with weights that have no gradient, one layer of which is not hybridized."""

    def __init__(self):
        gluon.nn.HybridSequential.__init__(self)
        mx.random.seed(6)
        self.add(gluon.nn.Conv2D(64, 3, in_channels=16, use_bias=False), gluon.nn.BatchNorm(in_channels=64))
        self.add(gluon.nn.Activation("relu"), gluon.nn.Dense(8, in_units=64 * 36))
        self.initialize(mx.init.Xavier())
        for layer in list(self)[:3]:
            layer.hybridize()


def images(step):
    return nd.array(np.random.RandomState(100 * step + rank).randn(2, 16, 8, 8))


def backward(net, step):
    with autograd.record():
        loss = (net(images(step)) ** 2).mean()
    loss.backward()


def trained(net, store=TYPE, steps=10, change=lambda net, step, note: None, on_store=True, waits=False):
    """What the program sees after each step: weights, gradients, and what `change` notes.

    `waits`: it reads them when all work is done. After inference, training restores the order of convolutions' weights.
    MXNet crashes at times, also with its local store, if a program reads such a weight meanwhile.
    """
    seen = []

    def note(array):
        seen.append(array.asnumpy())

    settings = {"learning_rate": 0.03, "momentum": 0.5, "wd": 0.01}
    store = mx.kv.create(store)
    trainer = gluon.Trainer(net.collect_params(), "sgd", settings, store, update_on_kvstore=on_store)
    for step in range(steps):
        change(net, step, note)
        backward(net, step)
        trainer.step(workers)
        if waits:
            mx.nd.waitall()
        seen += [array.asnumpy() for each in net.parameters for array in each.list_data()]
        seen += [each.grad().asnumpy() for each in net.parameters if each.grad_req != "null"]
    return seen


def move_and_note(weights, slots):
    found = move_weights(weights, slots)
    moved.update(list(found))
    return found


def check(change, make=Convolutions, moves=True, **options):
    """A single worker sees what it sees under `local`, or, if weights are averaged, when all of them are copied."""
    assert workers == 1
    if "elastic" in TYPE and "on_store" not in options:
        check(change, make, moves, on_store=False, **options)
        options["on_store"] = True
    moved.clear()
    gc.collect()
    averaged_weights.move_weights = move_and_note
    found = trained(make(), TYPE, change=change(), **options)
    if "elastic" in TYPE:
        assert bool(moved) == moves
        averaged_weights.move_weights = lambda weights, slots: {}
        expected = trained(make(), TYPE, change=change(), **options)
    else:
        expected = trained(make(), "local", change=change(), **options)
    assert len(found) == len(expected)
    for number, (got, want) in enumerate(zip(found, expected, strict=True)):
        scale = np.abs(want).max()
        np.testing.assert_allclose(got, want, rtol=0, atol=2e-5 * scale, err_msg=f"array {number} of {len(found)}")


def count():
    """Prints the copies of each parameter in a step."""
    on_store, net = os.environ["UPDATE"] == "store", Convolutions()
    sizes, counted = [each.data().size for each in net.parameters], []

    def change(net, step, note):
        counted.append(copied.copy())

    store = os.environ.get("STORE", TYPE)
    trained(net, store, SETTLED + 6, change, on_store)
    counts = {(counted[-1][size] - counted[SETTLED][size]) / (len(counted) - 1 - SETTLED) for size in sizes}
    print(f"copies of worker {rank}: {' '.join(f'{each:g}' for each in sorted(counts))}")


def plain():
    check(lambda: lambda net, step, note: None)


def inference_in_between():
    def change():
        def infer(net, step, note):
            mx.nd.waitall()  # MXNet crashes at times, also with its local store, where this runs beside training
            note(net(images(1000 + step)))
            mx.nd.waitall()

        return infer

    check(change, waits=True)
    check(change, make=Normalised, waits=True)
    check(change, make=lambda: hybridized(static_alloc=True), waits=True)


def hybridized(**options):
    net = Convolutions()
    net.hybridize(**options)
    return net


def static_shapes():
    static = {"static_alloc": True, "static_shape": True}
    check(lambda: lambda net, step, note: None, lambda: hybridized(**static), moves=False)
    for when in range(1, 7):

        def change(when=when):
            def hybridize(net, step, note):
                if step == when:
                    net.hybridize(**static)

            return hybridize

        check(change, steps=8)


def arrays_that_are_held():
    """Weights, parts of them and gradients that the program took at any time."""
    for when in range(7):

        def change(when=when):
            held = []

            def hold(net, step, note):
                if step == when:
                    weight, gradient = net.parameters[0].data(), net.parameters[0].grad()
                    held.extend([weight, weight[1], weight.reshape((-1,)), weight.detach(), gradient, gradient[1]])
                for array in held:
                    note(array)

            return hold

        check(change, steps=9)


def weights_that_are_written():
    for when in (1, 3, 6):

        def change(when=when):
            def write(net, step, note):
                if step == when:
                    net.parameters[0].data()[:] = 0.01
                    net.parameters[2].data()[0] += 0.1
                    note(net.parameters[0].data())

            return write

        check(change, steps=9)


def frozen_and_thawed():
    def change():
        def freeze(net, step, note):
            if step in (2, 4, 7, 9):
                net[0].collect_params().setattr("grad_req", "null" if step in (2, 7) else "write")

        return freeze

    for on_store in (True, False):
        check(change, steps=16, on_store=on_store)


def fused_when_frozen_and_thawed():
    """A step leaves the fast way if it is the first, if a new key needs memory, or if a key is missing."""
    fused, end_step = Counter(), TimeSpent.end_step

    def counting(self, last_gradient):
        fused[on_store] += 1
        end_step(self, last_gradient)

    def freeze(net, step, note):
        if step in (0, 3, 6, 7, 9, 12):
            net[0].collect_params().setattr("grad_req", "null" if step in (0, 6, 9) else "write")

    patient = [patch.object(module, "STALL_SECONDS", 60.0) for module in (schedule, votes)]
    with patch.object(TimeSpent, "end_step", counting), patient[0], patient[1]:
        for on_store in (True, False):
            trained(Convolutions(), TYPE, 16, freeze, on_store)
            mx.kv.create(TYPE).barrier()
            assert fused[on_store] == 16 - len((0, 3, 6, 9)), (on_store, fused)


def gradients_that_add_up():
    for first in (0, 5):

        def change(first=first):
            def add(net, step, note):
                if step == first:
                    net.collect_params().setattr("grad_req", "add")
                if step > first:
                    net.collect_params().zero_grad()

            return add

        for on_store in (True, False):
            # What the store holds until the first update has no gradient.
            check(change, moves=first > 0 or on_store, steps=first + 6, on_store=on_store)


def gradients_marked_to_add_up():
    """The program marks gradients that were moved, and later has the sums written elsewhere, so that they leave."""

    def summed(store):
        store, weight, gradient, other, seen = mx.kv.create(store), nd.ones(300), nd.zeros(300), nd.zeros(300), []
        autograd.mark_variables([weight], [gradient], "write")
        store.broadcast(0, weight, out=weight)
        for step in range(12):
            if step == 6:
                autograd.mark_variables([weight], [gradient], "add")
            with autograd.record():
                loss = (weight * step).sum()
            loss.backward()
            store.pushpull(0, gradient, out=other if step > 7 else gradient)
            seen += [gradient.asnumpy(), other.asnumpy()]
        return seen

    np.testing.assert_array_equal(summed(TYPE), summed("local"))


def other_arrays():
    def change():
        def reset(net, step, note):
            if step in (1, 3, 6):
                net.collect_params().reset_ctx(mx.cpu())
            if step == 8:
                mx.random.seed(8)
                net.collect_params().initialize(mx.init.Xavier(), force_reinit=True)

        return reset

    check(change, steps=14)


def saved():
    def change():
        def save(net, step, note):
            if step in (2, 3, 5):
                path = os.path.join(os.environ["FOLDER"], "net")
                net.export(path, step)
                net.save_parameters(path)
                other = Convolutions()
                other.load_parameters(path)
                for one in other.parameters:
                    note(one.data())
                read = gluon.SymbolBlock.imports(f"{path}-symbol.json", ["data"], f"{path}-{step:04d}.params")
                note(read(images(7)))

        return save

    check(change)


def bound():
    """An executor keeps to the memory that an array has when it is bound."""
    for when in (1, 3, 6):

        def change(when=when):
            held = []

            def bind(net, step, note):
                weight = net.parameters[-1].data()
                if step == when:
                    held.append((mx.sym.Variable("w") * 2).bind(mx.cpu(), {"w": weight}))
                for executor in held:
                    note(executor.forward()[0])

            return bind

        check(change)


def forked():
    """A child's inference leaves the weights of its parent alone."""

    def change():
        def fork(net, step, note):
            if step in (2, 5):
                mx.nd.waitall()
                child = os.fork()
                if not child:
                    net(images(step)).wait_to_read()
                    for each in net.parameters:
                        each.data()[:] = 0.5
                    mx.nd.waitall()
                    os._exit(0)
                assert os.waitpid(child, 0)[1] == 0

        return fork

    check(change)


def shared():
    """Two networks with the same parameters, one of which is trained; and two stores that train the same."""

    def change():
        others = []

        def share(net, step, note):
            if not others:
                with net.name_scope():
                    others.append(gluon.nn.Conv2D(64, 3, in_channels=16, activation="relu", params=net[0].params))
            note(others[0](images(step)))

        return share

    check(change)


def usual_sums():
    """After steps that were all alike, gradients are pushed while autograd records and in every form, and are replaced.

    Then an optimizer is set.
    """
    usual, begin = Counter(), UsualSums.begin

    def counting(self, key, value, priority):
        begun = begin(self, key, value, priority)
        usual[key] += begun
        return begun

    def summed(store):
        weights = [nd.ones(300) * key for key in range(4)]
        gradients, others = ([nd.zeros(300) for _ in weights] for _ in range(2))
        autograd.mark_variables(weights, gradients)
        for key, weight in enumerate(weights):
            store.broadcast(key, weight, out=weight)
        seen, forms = [], {8: lambda g: g, 9: lambda g: (g,), 10: lambda g: [g * 2], 11: lambda g: [g, g + 1]}
        for step in range(24):
            if step == 13:
                gradients[1] = nd.zeros(300)
                autograd.mark_variables([weights[1]], [gradients[1]])
            if step == 16:
                store.set_optimizer(mx.optimizer.SGD(learning_rate=0.1))
            with autograd.record():
                losses = [(weight * weight / (step + 1)).sum() for weight in weights]
            autograd.backward(losses)
            with autograd.record() if step in (6, 7) else nullcontext():
                for key, (gradient, other) in enumerate(zip(gradients, others, strict=True)):
                    value = forms.get(step, lambda g: [g])(gradient) if key != 2 else [gradient]
                    if key == 0 and step in (5, 6):
                        pass  # another key begins the step
                    elif step >= 16 and key != 2:
                        store.pushpull(key, value, out=weights[key])
                    elif key == 3 and step == 12:
                        store.push(key, value)
                    else:
                        store.pushpull(key, value, **({"out": other} if step == 14 and key != 2 else {}))
                    store.pull(key, out=other)
                    seen += [gradient.asnumpy(), other.asnumpy(), weights[key].asnumpy()]
        return seen

    def assert_same(some, others):
        for number, (got, want) in enumerate(zip(some, others, strict=False)):
            step, key, what = number // 12, number // 3 % 4, ("gradient", "stored value", "weight")[number % 3]
            np.testing.assert_allclose(got, want, rtol=1e-5, err_msg=f"step {step}, {what} of key {key}")

    store = mx.kv.create(TYPE)
    with patch.object(UsualSums, "begin", counting):
        found = summed(store)
    # What `local` has stored before the first update is the gradient itself, which then changes with it.
    assert_same(found[: 16 * 12], summed(mx.kv.create("local")))
    with patch.object(UsualSums, "begin", lambda *arguments: False):
        assert_same(found, summed(mx.kv.create(TYPE)))
    assert not usual[0], usual  # it begins the steps
    assert usual[2] == 13, usual
    assert min(usual[1], usual[3]) >= 3, usual
    for key in (True, 4):
        with pytest.raises(mx.MXNetError, match=f"key '{key}' is unknown"):
            store.pushpull(key, nd.zeros(300))


def an_optimizer_that_is_set_anew():
    net, store = Convolutions(), mx.kv.create(TYPE)
    reference = Convolutions()
    for round_ in range(2):
        optimizers = [mx.optimizer.SGD(learning_rate=0.01 * (1 + round_)) for _ in range(2)]
        if not round_:
            for number, each in enumerate(net.parameters):
                store.broadcast(number, each.data(), out=each.data())
        store.set_optimizer(optimizers[0])
        for step in range(6):
            backward(net, step)
            backward(reference, step)
            for number, (each, other) in enumerate(zip(net.parameters, reference.parameters, strict=True)):
                store.pushpull(number, each.list_grad(), out=each.list_data())
                optimizers[1].update(number, other.data(), other.grad(), None)
                if step == 4:
                    out = nd.zeros(each.shape)
                    each.data()[:] = 0.1
                    store.pull(number, out=out)
                    np.testing.assert_allclose(out.asnumpy(), other.data().asnumpy(), rtol=1e-4, atol=1e-5)
                    store.pull(number, out=each.data())
                np.testing.assert_allclose(each.data().asnumpy(), other.data().asnumpy(), rtol=1e-4, atol=1e-5)


if __name__ == "__main__":
    for program in sys.argv[1:]:
        globals()[program]()
        print(f"{program} is right", flush=True)
