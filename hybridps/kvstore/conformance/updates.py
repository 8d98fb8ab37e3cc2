"""Checks of a store with an optimizer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mxnet as mx

from hybridps.kvstore.conformance.observing import Create, Observed, error_of, filled, new_keys, pulled, values, whole


def check_an_optimizer_goes_on_from_what_was_pushed(create: Create) -> Iterator[Observed]:
    store, keys = create(), new_keys(2)
    for key in keys:
        store.init(key, filled(1))
        store.push(key, filled(2))
    yield "pushed", [pulled(store, key) for key in keys], [whole(2 * store.num_workers)] * 2
    store.set_optimizer(mx.optimizer.SGD(learning_rate=0.5))
    yield "before", [pulled(store, key) for key in keys], [whole(2 * store.num_workers)] * 2
    store.push(keys[0], filled(1))
    store.pushpull(keys[1], filled(1), out=filled(0))
    yield "after push and pushpull", [pulled(store, key) for key in keys], [whole(1.5 * store.num_workers)] * 2


def check_an_optimizer_updates_what_is_stored(create: Create) -> Iterator[Observed]:
    store, (one, other, third) = create(), new_keys(3)
    store.set_optimizer(mx.optimizer.SGD(learning_rate=0.5))
    store.init([one, other], [filled(4)] * 2)
    out = filled(0)
    store.broadcast(third, filled(4), out=out)
    store.push(one, filled(1))
    yield "push", pulled(store, one), whole(4 - 0.5 * store.num_workers)
    scratch = filled(0)
    for key in (other, third):
        for step in (1, 2):
            store.pushpull(key, filled(1), out=scratch)
            yield f"out of pushpull, step {step}", values(scratch), whole(4 - 0.5 * step * store.num_workers)
            scratch[:] = 99
        yield "what is stored", pulled(store, key), whole(4 - store.num_workers)
    yield "the array that was broadcast to", values(out), whole(4)
    gradient = filled(1)
    store.pushpull(one, gradient)
    yield "without out the weights replace the gradient", values(gradient), whole(4 - store.num_workers)


def check_an_updater_is_called_with_the_sum(create: Create) -> Iterator[Observed]:
    store, (key,) = create(), new_keys()
    seen = []

    def update(key: Any, pushed: Any, stored: Any) -> None:
        seen.append(key)
        stored += 2 * pushed

    store._set_updater(update)
    store.init(key, filled(1))
    store.push(key, [filled(1), filled(2)])
    yield "what is stored", pulled(store, key), whole(1 + 2 * 3 * store.num_workers)
    yield "the key", seen, [key]


def check_optimizer_states_need_an_optimizer(create: Create) -> Iterator[Observed]:
    store = create()
    yield "save", error_of(lambda: store.save_optimizer_states("unused")), "AssertionError"
    yield "load", error_of(lambda: store.load_optimizer_states("unused")), "AssertionError"
