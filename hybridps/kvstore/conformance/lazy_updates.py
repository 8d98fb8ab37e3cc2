"""Checks of optimizers with row-sparse gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import mxnet as mx
import numpy as np
from mxnet import nd

from hybridps.kvstore.conformance.observing import Create, Observed, new_keys
from hybridps.kvstore.conformance.sparse import TABLE, rows

OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "SGD": lambda: mx.optimizer.SGD(learning_rate=0.1, momentum=0.9, wd=0.01),
    "SGD, not lazy": lambda: mx.optimizer.SGD(learning_rate=0.1, momentum=0.9, wd=0.01, lazy_update=False),
    "Adam": lambda: mx.optimizer.Adam(learning_rate=0.1),
    "Adam, not lazy": lambda: mx.optimizer.Adam(learning_rate=0.1, lazy_update=False),
    "AdaGrad": lambda: mx.optimizer.AdaGrad(learning_rate=0.1),
    "Ftrl": lambda: mx.optimizer.Ftrl(learning_rate=0.1),
}


def check_rows_are_updated_as_the_optimizer_updates_them(create: Create) -> Iterator[Observed]:
    """A row that has a gradient once, a row that always has one, and rows that never have one."""
    for name, make in OPTIMIZERS.items():
        for sparse in (False, True) if "not" not in name else (False,):
            store, (key,) = create(), new_keys()
            start = rows(range(6), 1) if sparse else nd.ones(TABLE)
            store.init(key, start)
            store.set_optimizer(make())
            update, alone = mx.optimizer.get_updater(make()), start.copy()
            for step in range(4):
                ids = [1, 3] if step == 0 else [3]
                store.push(key, rows(ids))
                update(0, rows(ids, store.num_workers), alone)
            out = nd.zeros(TABLE)
            store.pull(key, out=out)
            kind = "row-sparse" if sparse else "dense"
            yield f"{name}, {kind} weight", np.round(out.asnumpy(), 5).tolist(), np.round(alone.asnumpy(), 5).tolist()


def check_an_updater_is_given_rows(create: Create) -> Iterator[Observed]:
    store, keys = create(), new_keys(2)
    seen = []
    store._set_updater(lambda key, pushed, stored: seen.append((pushed.stype, stored.stype)))
    store.init(keys, [nd.ones(TABLE), rows(range(6))])
    for key in keys:
        store.push(key, rows([1]))
        store.push(key, nd.ones(TABLE))
    want = [(pushed, stored) for stored in ("default", "row_sparse") for pushed in ("row_sparse", "default")]
    yield "storage types of the sum and of what is stored", seen, want
