"""Checks of the forms of calls: keys, shapes, dtypes, sparse arrays, and errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from mxnet import autograd, nd

from hybridps.kvstore.conformance.observing import Create, Observed, error_of, filled, new_keys, pulled, values, whole

TABLE = nd.arange(8).reshape((4, 2))


def check_keys_are_all_of_one_kind(create: Create) -> Iterator[Observed]:
    store, (one, other) = create(), new_keys(2)
    store.init(one, filled(1))
    yield "init", error_of(lambda: store.init(str(other), filled(1))), "MXNetError"
    yield "pull", error_of(lambda: store.pull(str(one), out=filled(1))), "MXNetError"
    yield "in one list", error_of(lambda: store.init([other, "word"], [filled(1)] * 2)), "AssertionError"
    yield "a float", error_of(lambda: store.init(3.5, filled(1))), "AssertionError"


def check_keys_may_be_words(create: Create) -> Iterator[Observed]:
    store, word = create(), f"word {new_keys()[0]}"
    store.init(word, filled(2))
    yield "one", pulled(store, word), whole(2)


def check_arguments_of_another_form(create: Create) -> Iterator[Observed]:
    store = create()
    yield "fewer values than keys", error_of(lambda: store.init(new_keys(2), [filled(1)])), "AssertionError"
    yield "an unknown capability", error_of(lambda: store.is_capable("unknown")), "ValueError"


def check_wrong_keys_raise_errors_of_mxnet(create: Create) -> Iterator[Observed]:
    store, (one, unknown) = create(), new_keys(2)
    store.init(one, filled(1))
    yield "init again", error_of(lambda: store.init(one, filled(1))), "MXNetError"
    yield "push to an unknown key", error_of(lambda: store.push(unknown, filled(1))), "MXNetError"
    yield "pull of an unknown key", error_of(lambda: store.pull(unknown, out=filled(1))), "MXNetError"
    yield "what is stored", pulled(store, one), whole(1)


def check_shapes_must_fit(create: Create) -> Iterator[Observed]:
    store, (one,) = create(), new_keys()
    store.init(one, filled(1))
    yield "push and pull", error_of(lambda: (store.push(one, filled(1, (4,))), pulled(store, one))), "MXNetError"
    (two,) = new_keys()
    store.init(two, filled(1))
    yield "pull", error_of(lambda: pulled(store, two, (4,))), "MXNetError"


def check_dtypes(create: Create) -> Iterator[Observed]:
    store = create()
    for dtype in ("float16", "float32", "float64", "int32", "int64", "uint8", "int8"):
        (key,) = new_keys()
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
    store, (key,) = create(), new_keys()
    store.init(key, TABLE.tostype("row_sparse"))
    for what, ids in (("some", (0, 2)), ("twice the same", (2, 2)), ("in another order", (3, 0))):
        out = nd.sparse.zeros("row_sparse", (4, 2))
        store.row_sparse_pull(key, out=out, row_ids=_rows(*ids))
        yield what, values(out), _of_table(*ids)


def check_rows_are_pulled_to_several_arrays(create: Create) -> Iterator[Observed]:
    store, (key, plain) = create(), new_keys(2)
    store.init(key, TABLE.tostype("row_sparse"))
    store.init(plain, TABLE)
    outs = [nd.sparse.zeros("row_sparse", (4, 2)) for _ in range(2)]
    store.row_sparse_pull(key, out=outs, row_ids=_rows(1))
    yield "the same rows", [values(out) for out in outs], [_of_table(1)] * 2
    store.row_sparse_pull(key, out=outs, row_ids=[_rows(2), _rows(0)])
    yield "other rows for each", [values(out) for out in outs], [_of_table(2), _of_table(0)]
    out = nd.sparse.zeros("row_sparse", (4, 2))
    yield "rows of a dense key", error_of(lambda: store.row_sparse_pull(plain, out=out, row_ids=_rows(1))), "MXNetError"


def check_sparse_gradients_are_summed(create: Create) -> Iterator[Observed]:
    store, (key,) = create(), new_keys()
    store.init(key, nd.ones((4, 2)).tostype("row_sparse"))
    store.push(key, _row_of_ones())
    out = nd.sparse.zeros("row_sparse", (4, 2))
    store.row_sparse_pull(key, out=out, row_ids=nd.arange(4, dtype="int64"))
    yield "one row", values(out), [[0, 0], [store.num_workers] * 2, [0, 0], [0, 0]]


def check_sparse_gradients_of_dense_keys(create: Create) -> Iterator[Observed]:
    store, (key, empty) = create(), new_keys(2)
    store.init(key, nd.zeros((4, 2)))
    store.push(key, _row_of_ones())
    yield "a dense key", pulled(store, key, (4, 2)), [[0, 0], [store.num_workers] * 2, [0, 0], [0, 0]]
    store.init(empty, nd.sparse.zeros("row_sparse", (4, 2)))
    store.push(empty, _row_of_ones())
    out = nd.sparse.zeros("row_sparse", (4, 2))
    store.row_sparse_pull(empty, out=out, row_ids=_rows(1))
    yield "a key without rows", values(out), [[0, 0], [store.num_workers] * 2, [0, 0], [0, 0]]


def check_what_a_store_says_of_itself(create: Create) -> Iterator[Observed]:
    store = create()
    yield "type", type(store.type), str
    yield "optimizer", store.is_capable("OPTIMIZER"), True
    yield "rank", 0 <= store.rank < store.num_workers, True


def _rows(*ids: int) -> Any:
    return nd.array(ids, dtype="int64")


def _of_table(*ids: int) -> list[Any]:
    kept = np.zeros((4, 2))
    kept[list(ids)] = TABLE.asnumpy()[list(ids)]
    return kept.tolist()  # type: ignore[no-any-return]


def _row_of_ones() -> Any:
    return nd.sparse.row_sparse_array((nd.ones((1, 2)), [1]), shape=(4, 2))
