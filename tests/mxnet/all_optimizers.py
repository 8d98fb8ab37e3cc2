"""Every optimizer of MXNet under asynchronous SGD, against MXNet's own updater on the same sequence of gradients.

One worker. Run by test_server_updates.py, as `all_optimizers.py FOLDER`.
"""

import sys
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest
from mxnet import nd

from hybridps.kvstore.updates.states_file import set_states, states_to_bytes

SHAPES = {3: (7, 5), 9: (40, 11), 11: (2, 256)}
"""One chunk has 256 elements of float32: keys 9 and 11 have more."""
STEPS, SAVED = 7, 3
NAMES = {3: "a_weight", 9: "b_bias", 11: "c_weight"}


def schedule(base):
    return mx.lr_scheduler.FactorScheduler(step=2, factor=0.7, base_lr=base)


def optimizers():
    """Each one registered, and some with settings that make them keep more."""
    for name, kind in mx.optimizer.Optimizer.opt_registry.items():
        if kind.__module__.startswith("mxnet.") and name != "sgld":  # which draws random numbers
            wd = 0 if name == "groupadagrad" else 0.01
            yield name, lambda kind=kind, wd=wd: kind(lr_scheduler=schedule(0.02), wd=wd, rescale_grad=0.5)
    common = {"wd": 0.01, "param_idx2name": NAMES}
    lars = {"lr_scheduler": schedule(0.5), "momentum": 0.9, "eta": 0.1}
    yield "lars by names", lambda: mx.optimizer.LARS(**lars, **common)
    large = {"momentum": 0.9, "batch_scale": 2, "warmup_strategy": "lars"}
    yield "lbsgd of two", lambda: mx.optimizer.LBSGD(learning_rate=0.05, **large, **common)
    warm = {"batch_scale": 4, "updates_per_epoch": 4, "begin_epoch": 1}
    yield "lbsgd that warms up", lambda: mx.optimizer.LBSGD(lr_scheduler=schedule(0.05), **warm)
    yield "rmsprop centred", lambda: mx.optimizer.RMSProp(centered=True, clip_gradient=0.5, clip_weights=1.5)
    yield "momentum", lambda: mx.optimizer.SGD(learning_rate=0.1, momentum=0.9, clip_gradient=0.6, **common)
    yield "signum", lambda: mx.optimizer.Signum(learning_rate=0.05, momentum=0.8, wd_lh=0.01)


def optimizers_of_half():
    """With weights of float16."""
    for mixed in (False, True):
        more = {"multi_precision": mixed, "rescale_grad": 0.5}
        yield "sgd", lambda more=more: mx.optimizer.SGD(learning_rate=2e-4, **more)
        yield "momentum", lambda more=more: mx.optimizer.SGD(learning_rate=2e-4, momentum=0.9, wd=0.01, **more)
        yield "nag", lambda more=more: mx.optimizer.NAG(learning_rate=2e-4, momentum=0.9, **more)
        yield "adam", lambda more=more: mx.optimizer.Adam(learning_rate=2e-4, epsilon=1e-3, **more)
        yield "lamb", lambda more=more: mx.optimizer.LAMB(learning_rate=2e-4, epsilon=1e-3, **more)
    yield "lars", lambda: mx.optimizer.LARS(learning_rate=0.02, momentum=0.9, multi_precision=True)
    large = {"multi_precision": True, "momentum": 0.9, "batch_scale": 2}
    yield "lbsgd of two", lambda: mx.optimizer.LBSGD(learning_rate=2e-4, **large)
    yield "rmsprop", lambda: mx.optimizer.RMSProp(learning_rate=2e-4, multi_precision=True)


def gradient(key, step, dtype):
    return nd.array(np.random.default_rng([key, step]).standard_normal(SHAPES[key]), dtype=dtype)


def store_with(optimizer, weights):
    store = mx.kv.create("dist_hybridps_async")
    store.set_optimizer(optimizer)
    for key, weight in weights.items():
        store.init(key, weight)
    return store


def check_states(found, expected, tolerance, said):
    """As MXNet keeps them: the same structure, shapes and dtypes."""
    if isinstance(expected, (tuple, list)):
        assert isinstance(found, (tuple, list)), said
        assert len(found) == len(expected), said
        for pair in zip(found, expected, strict=True):
            check_states(*pair, tolerance, said)
    elif expected is None:
        assert found is None, said
    else:
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype), said
        np.testing.assert_allclose(found.asnumpy(), expected.asnumpy(), **tolerance, err_msg=said)


def check_saved(store, own, path, tolerance, said):
    """The states that the store saves are those of an updater. Returns the optimizer that is saved with them."""
    store.save_optimizer_states(str(path), dump_optimizer=True)
    saved = mx.optimizer.get_updater(mx.optimizer.SGD())
    set_states(saved, path.read_bytes(), str(path))
    check_states([saved.states[key] for key in SHAPES], [own.states[key] for key in SHAPES], tolerance, said)
    return saved.optimizer


def trains_as_mxnet_does(name, make, folder, dtype):
    """Midway states are compared, and another store goes on from MXNet's; later one from what the servers gave."""
    tolerance = {"rtol": 1e-4, "atol": 1e-5}
    own = mx.optimizer.get_updater(make())
    is_mixed = dtype == "float16" and own.optimizer.multi_precision
    rounded = {"rtol": 2**-10, "atol": 1e-6} if is_mixed else tolerance
    weights = {key: gradient(key, 99, dtype) for key in SHAPES}
    outs = {key: nd.zeros(shape, dtype=dtype) for key, shape in SHAPES.items()}
    store = store_with(make(), weights)
    ours, theirs = Path(folder, "ours"), Path(folder, "theirs")
    for step in range(STEPS):
        if step == SAVED:
            optimizer = check_saved(store, own, ours, tolerance, name)
            assert optimizer._index_update_count == dict.fromkeys(SHAPES, SAVED) or name == "test", name
            theirs.write_bytes(states_to_bytes(own, dump_optimizer=True))
            store = store_with(make(), weights)
            store.load_optimizer_states(str(theirs))
        if step == SAVED + 1:
            theirs.write_bytes(states_to_bytes(own, dump_optimizer=True))
            store.load_optimizer_states(str(theirs))
        if step == SAVED + 2:
            store.save_optimizer_states(str(ours), dump_optimizer=True)
            store = store_with(make(), weights)
            store.load_optimizer_states(str(ours))
        for key in SHAPES:
            own(key, gradient(key, step, dtype), weights[key])
            store.push(key, gradient(key, step, dtype))
            store.pull(key, out=outs[key])
            assert outs[key].dtype == weights[key].dtype
            found, expected = outs[key].asnumpy(), weights[key].asnumpy()
            np.testing.assert_allclose(found, expected, **rounded, err_msg=f"{name}, key {key}, step {step}")
    check_saved(store, own, ours, tolerance, name)


def what_cannot_be(folder):
    """Wrong uses are errors that say so, and the store goes on."""
    wrong = Path(folder, "wrong")
    store = store_with(mx.optimizer.AdaGrad(learning_rate=0.1), {3: nd.ones((7, 5))})
    store.push(3, nd.ones((7, 5)))
    for updater, said in (
        (mx.optimizer.get_updater(mx.optimizer.RMSProp()), "the states of RMSProp"),
        (mx.optimizer.get_updater(mx.optimizer.AdaGrad(multi_precision=True)), "multi_precision=True"),
    ):
        updater(3, nd.ones((7, 5)), nd.ones((7, 5)))
        wrong.write_bytes(states_to_bytes(updater, dump_optimizer=True))
        with pytest.raises(mx.MXNetError, match=said):
            store.load_optimizer_states(str(wrong))
    store.set_optimizer(mx.optimizer.AdaGrad(learning_rate=0.1))
    store.push(3, nd.ones((7, 5)))
    own = mx.optimizer.get_updater(mx.optimizer.AdaGrad())
    for own.states[3] in ((nd.ones((7, 5)), nd.ones((7, 5))), nd.ones((8, 5)), nd.ones((6, 5))):
        wrong.write_bytes(states_to_bytes(own, dump_optimizer=False))
        with pytest.raises(mx.MXNetError, match="key 3 has states of the shapes"):
            store.load_optimizer_states(str(wrong))


if __name__ == "__main__":
    for name, make in optimizers():
        trains_as_mxnet_does(name, make, sys.argv[1], "float32")
    for name, make in optimizers_of_half():
        trains_as_mxnet_does(name, make, sys.argv[1], "float16")
    what_cannot_be(sys.argv[1])
    print("all optimizers are right")
