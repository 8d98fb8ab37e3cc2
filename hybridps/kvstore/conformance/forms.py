"""The forms of calls: keys, shapes, dtypes, sparse arrays, and what is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from mxnet import autograd, nd

from hybridps.kvstore.conformance.observing import Create, Observed, error_of, filled, new_keys, pulled, values, whole


def check_keys_are_all_of_one_kind(create: Create) -> Iterator[Observed]:
    (one, other), word = new_keys(2), f"word {new_keys()[0]}"
    store = create()
    store.init(one, filled(1))
    yield "init", error_of(lambda: store.init(str(other), filled(1))), "MXNetError"
    yield "pull", error_of(lambda: store.pull(str(one), out=filled(1))), "MXNetError"
    yield "in one list", error_of(lambda: store.init([other, word], [filled(1)] * 2)), "AssertionError"
    yield "a float", error_of(lambda: store.init(3.5, filled(1))), "AssertionError"
    words = create()
    words.init(word, filled(2))
    yield "a word", pulled(words, word), whole(2)


def check_wrong_calls_raise_errors_of_mxnet(create: Create) -> Iterator[Observed]:
    store, (one, unknown) = create(), new_keys(2)
    store.init(one, filled(1))
    yield "init again", error_of(lambda: store.init(one, filled(1))), "MXNetError"
    yield "push to an unknown key", error_of(lambda: store.push(unknown, filled(1))), "MXNetError"
    yield "pull of an unknown key", error_of(lambda: store.pull(unknown, out=filled(1))), "MXNetError"
    yield "fewer values than keys", error_of(lambda: store.init(new_keys(2), [filled(1)])), "AssertionError"
    yield "an unknown capability", error_of(lambda: store.is_capable("unknown")), "ValueError"
    yield "what is stored", pulled(store, one), whole(1)


def check_shapes_must_fit(create: Create) -> Iterator[Observed]:
    store, (one,) = create(), new_keys()
    store.init(one, filled(1))
    yield "push and pull", error_of(lambda: (store.push(one, filled(1, (4,))), pulled(store, one))), "MXNetError"
    (two,) = new_keys()
    store.init(two, filled(1))
    yield "pull", error_of(lambda: pulled(store, two, (4,))), "MXNetError"


def check_dtypes(create: Create) -> Iterator[Observed]:
    for dtype in ("float16", "float32", "float64", "int32", "int64", "uint8", "int8"):
        store, (key,) = create(), new_keys()
        store.init(key, filled(1, dtype=dtype))
        store.push(key, [filled(1, dtype=dtype), filled(2, dtype=dtype)])
        yield dtype, pulled(store, key, dtype=dtype), whole(3 * store.num_workers)


def check_calls_while_autograd_records(create: Create) -> Iterator[Observed]:
    store, (one,) = create(), new_keys()
    weight = filled(3)
    weight.attach_grad()
    with autograd.record():
        store.init(one, weight)
        out = filled(0)
        store.pull(one, out=out)
        loss = (weight * weight).sum()
    loss.backward()
    yield "the gradient", values(weight.grad), whole(6)
    yield "what is stored", pulled(store, one), whole(3)


def check_rows_are_pulled(create: Create) -> Iterator[Observed]:
    store, (key, plain) = create(), new_keys(2)
    table = nd.arange(8).reshape((4, 2))
    store.init(key, table.tostype("row_sparse"))
    store.init(plain, table)

    def rows(*ids: int) -> Any:
        return nd.array(ids, dtype="int64")

    def want(*ids: int) -> list[Any]:
        kept = np.zeros((4, 2))
        kept[list(ids)] = table.asnumpy()[list(ids)]
        return kept.tolist()  # type: ignore[no-any-return]

    for what, ids in (("some", (0, 2)), ("twice the same", (2, 2)), ("in another order", (3, 0))):
        out = nd.sparse.zeros("row_sparse", (4, 2))
        store.row_sparse_pull(key, out=out, row_ids=rows(*ids))
        yield what, values(out), want(*ids)
    outs = [nd.sparse.zeros("row_sparse", (4, 2)) for _ in range(2)]
    store.row_sparse_pull(key, out=outs, row_ids=rows(1))
    yield "the same rows for two arrays", [values(out) for out in outs], [want(1)] * 2
    store.row_sparse_pull(key, out=outs, row_ids=[rows(2), rows(0)])
    yield "other rows for each array", [values(out) for out in outs], [want(2), want(0)]
    out = nd.sparse.zeros("row_sparse", (4, 2))
    yield "rows of a dense key", error_of(lambda: store.row_sparse_pull(plain, out=out, row_ids=rows(1))), "MXNetError"


def check_sparse_gradients_are_summed(create: Create) -> Iterator[Observed]:
    store, (key, plain) = create(), new_keys(2)
    store.init(key, nd.sparse.zeros("row_sparse", (4, 2)))
    store.init(plain, nd.zeros((4, 2)))
    gradient = nd.sparse.row_sparse_array((nd.ones((1, 2)), [1]), shape=(4, 2))
    want = (np.array([[0, 0], [1, 1], [0, 0], [0, 0]]) * store.num_workers).tolist()
    store.push(key, gradient)
    out = nd.sparse.zeros("row_sparse", (4, 2))
    store.row_sparse_pull(key, out=out, row_ids=nd.arange(4, dtype="int64"))
    yield "to a row-sparse key", values(out), want
    store.push(plain, gradient)
    yield "to a dense key", pulled(store, plain, (4, 2)), want


def check_what_a_store_says_of_itself(create: Create) -> Iterator[Observed]:
    store = create()
    yield "type", type(store.type), str
    yield "optimizer", store.is_capable("OPTIMIZER"), True
    yield "rank", 0 <= store.rank < store.num_workers, True
