"""Optimizer states in files: MXNet's states and optimizers come back as they were, and no pickle is read."""

from __future__ import annotations

import json
import pickle
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

mx = pytest.importorskip("mxnet")
from hybridps.errors import HybridPSError  # noqa: E402
from hybridps.kvstore.updates.states_file import set_states, states_to_bytes  # noqa: E402

pytestmark = pytest.mark.mxnet

OPTIMIZERS = [
    name for name, kind in mx.optimizer.Optimizer.opt_registry.items() if kind.__module__.startswith("mxnet.")
]


class Derived(mx.optimizer.SGD):
    """One of a program, with an attribute that no file can have."""

    def __init__(self, **settings):
        super().__init__(**settings)
        self.say = print


class Halving(mx.lr_scheduler.LRScheduler):
    def __call__(self, num_update):
        return self.base_lr / 2**num_update


def update(updater, steps=3, stype="default"):
    for step in range(steps):
        for index, shape in enumerate([(3, 4), (1, 2)]):
            mx.random.seed(step)
            weight, gradient = mx.nd.ones(shape), mx.nd.random.normal(shape=shape).tostype(stype)
            updater(index, gradient, weight.tostype(stype) if stype != "default" else weight)


def flat(state) -> list:
    if state is None or isinstance(state, mx.nd.NDArray):
        return [state]
    return [type(state), *(each for part in state for each in flat(part))]


def check_equal(found, expected):
    assert list(found) == list(expected)
    for key in expected:
        for one, other in zip(flat(found[key]), flat(expected[key]), strict=True):
            if isinstance(other, mx.nd.NDArray):
                assert (one.dtype, one.stype, one.shape) == (other.dtype, other.stype, other.shape)
                np.testing.assert_array_equal(one.asnumpy(), other.asnumpy())
            else:
                assert one is other


def plain(optimizer) -> dict:
    """The attributes of an optimizer that can be compared."""
    found = dict(vars(optimizer))
    schedule = found.pop("lr_scheduler")
    found["param_dict"] = None
    return {name: value for name, value in found.items() if name not in ("cumgrads", "weight_previous")} | {
        "schedule": schedule and (type(schedule), vars(schedule))
    }


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_comes_back(name):
    schedule = mx.lr_scheduler.MultiFactorScheduler(step=[2, 9], factor=0.7, base_lr=0.1)
    settings = {"lr_scheduler": schedule, "rescale_grad": np.float32(0.5), "param_idx2name": {0: "a", 1: "b"}}
    updater = mx.optimizer.get_updater(mx.optimizer.create(name, **settings))
    update(updater)
    other = mx.optimizer.get_updater(mx.optimizer.SGD())
    set_states(other, states_to_bytes(updater, dump_optimizer=True), "a file")
    check_equal(other.states, updater.states)
    assert other.states_synced == {0: False, 1: False}
    assert plain(other.optimizer) == plain(updater.optimizer)
    optimizer = other.optimizer
    assert optimizer._index_update_count is optimizer._all_index_update_counts[0]
    again = mx.optimizer.get_updater(optimizer)
    set_states(again, states_to_bytes(updater, dump_optimizer=False), "a file")
    assert again.optimizer is optimizer
    check_equal(again.states, updater.states)


@pytest.mark.parametrize("touched", [True, False])
def test_row_sparse_states(touched):
    updater = mx.optimizer.get_updater(mx.optimizer.SGD(momentum=0.9))
    if touched:
        update(updater, stype="row_sparse")
    else:
        updater.states[0] = mx.nd.sparse.zeros("row_sparse", (3, 4))
    other = mx.optimizer.get_updater(mx.optimizer.SGD(momentum=0.9))
    set_states(other, states_to_bytes(updater, dump_optimizer=False), "a file")
    check_equal(other.states, updater.states)


def test_classes_of_the_program_are_those_that_it_has_set():
    updater = mx.optimizer.get_updater(Derived(lr_scheduler=Halving(0.8), momentum=0.9))
    update(updater)
    content = states_to_bytes(updater, dump_optimizer=True)
    own = Derived(lr_scheduler=Halving(0.1))
    other = mx.optimizer.get_updater(own)
    set_states(other, content, "a file")
    assert type(other.optimizer) is Derived
    assert other.optimizer.say is print
    assert type(other.optimizer.lr_scheduler) is Halving
    assert (other.optimizer.lr_scheduler.base_lr, own.lr_scheduler.base_lr) == (0.8, 0.1)
    assert (other.optimizer.num_update, own.num_update) == (3, 0)
    unlike = mx.optimizer.get_updater(mx.optimizer.SGD())
    with pytest.raises(
        HybridPSError, match="the states of 'Derived', which is not MXNet's: set such an optimizer first"
    ):
        set_states(unlike, content, "a file")
    assert (type(unlike.optimizer), unlike.states) == (mx.optimizer.SGD, {})


class Harmful:
    """A pickle of it makes a file wherever it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self):
        return Path.touch, (self._path,)


def archive(**arrays) -> bytes:
    file = BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def written(content: object, **arrays) -> bytes:
    return archive(json=np.frombuffer(json.dumps(content).encode(), np.uint8), **arrays)


def test_no_pickle_is_read(tmp_path):
    trap = Harmful(tmp_path / "trap")
    updater = mx.optimizer.get_updater(mx.optimizer.SGD())
    array = {"states": {"dict": [[0, {"array": 0}]]}, "optimizer": None}
    for content in (
        pickle.dumps(trap),
        pickle.dumps({0: trap}, protocol=0),
        archive(json=np.array([trap], dtype=object)),
        written(array, **{"0": np.array([trap], dtype=object)}),
    ):
        with pytest.raises(HybridPSError, match="a file is not a file of optimizer states"):
            set_states(updater, content, "a file")
    assert not (tmp_path / "trap").exists()
    updater.set_states(pickle.dumps({0: trap}))
    assert (tmp_path / "trap").exists(), "the pickle is harmless"


def a_dict(*pairs) -> dict:
    return {"dict": [list(pair) for pair in pairs]}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"PK",
        archive(),
        written([]),
        written({"states": 1, "optimizer": None}),
        written({"states": a_dict((0, "text")), "optimizer": None}),
        written({"states": a_dict((0, {"array": 0})), "optimizer": None}),
        written({"states": a_dict((0, {"array": 0, "more": 1})), "optimizer": None}),
        written({"states": a_dict((0, {"eval": "1"})), "optimizer": None}),
        written({"states": a_dict(), "optimizer": {"class": "SGD", "attributes": {}}}),
        written({"states": a_dict(), "optimizer": {"class": 1, "attributes": {}}}),
        written({"states": a_dict(), "optimizer": {"class": "SGD", "attributes": {"lr_scheduler": {"schedule": 1}}}}),
        written(
            {"states": a_dict((0, {"rows": [{"array": 0}, {"array": 1}, [3, 2]]})), "optimizer": None},
            **{"0": np.ones((1, 2), "float32"), "1": np.array([1 << 40])},
        ),
    ],
)
def test_what_is_none_of_ours_changes_nothing(content):
    own = mx.optimizer.Adam()
    updater = mx.optimizer.get_updater(own)
    with pytest.raises(HybridPSError, match="a file is not a file of optimizer states"):
        set_states(updater, content, "a file")
    assert (updater.optimizer, updater.states) == (own, {})


def test_a_file_cut_anywhere_is_refused():
    updater = mx.optimizer.get_updater(mx.optimizer.Adam())
    update(updater)
    content = states_to_bytes(updater, dump_optimizer=True)
    for length in range(0, len(content), 97):
        with pytest.raises(HybridPSError, match="a file is not a file of optimizer states"):
            set_states(updater, content[:length], "a file")
