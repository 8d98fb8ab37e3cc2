"""Checks of row-sparse gradients and weights: which rows a store sums, keeps and returns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from mxnet import nd

from hybridps.kvstore.conformance.observing import Create, Observed, error_of, new_keys, pulled, values

TABLE = (6, 2)


def rows(ids: Sequence[int], value: float = 1, shape: tuple[int, ...] = TABLE, dtype: str = "float32") -> Any:
    """Return a row-sparse array that has this value in these rows."""
    data = np.full((len(ids), *shape[1:]), value, dtype)
    return nd.sparse.row_sparse_array((data, list(ids)), shape=shape, dtype=dtype)


def held(store: Any, key: int, shape: tuple[int, ...] = TABLE, dtype: str = "float32") -> dict[int, Any]:
    """Return the rows that a store has for a key, by their numbers."""
    out = nd.sparse.zeros("row_sparse", shape, dtype=dtype)
    store.pull(key, out=out, ignore_sparse=False)
    return dict(zip(out.indices.asnumpy().tolist(), values(out.data), strict=True))


def some_rows(store: Any, key: int, ids: Any) -> dict[int, Any]:
    """Return these rows of a key, by their numbers, as `row_sparse_pull` copies them."""
    out = nd.sparse.zeros("row_sparse", TABLE)
    store.row_sparse_pull(key, out=out, row_ids=ids)
    return dict(zip(out.indices.asnumpy().tolist(), values(out.data), strict=True))


def both(value: float, *ids: int) -> dict[int, Any]:
    """Return what `held` returns for rows of two elements with this value."""
    return {number: [value, value] for number in ids}


def check_the_sum_has_the_rows_that_any_gradient_has(create: Create) -> Iterator[Observed]:
    store, (key,) = create(), new_keys()
    every = store.num_workers
    store.init(key, rows(range(6)))
    yield "before", held(store, key), both(1, *range(6))
    store.push(key, rows([1, 3], 5))
    yield "one array", held(store, key), both(5 * every, 1, 3)
    store.push(key, [rows([1, 3]), rows([3, 5], 2)])
    want = both(every, 1) | both(3 * every, 3) | both(2 * every, 5)
    yield "two devices", held(store, key), want
    store.push(key, rows([2], store.rank + 1) if store.rank else rows([0, 2]))
    want = both(1, 0) | both(every * (every + 1) / 2, 2)
    yield "other rows on each worker", held(store, key), want
    store.push(key, rows([4], 0))
    yield "a row of zeros", held(store, key), both(0, 4)
    store.push(key, rows([4, 1], 7))
    yield "in another order", pulled(store, key, TABLE)[1:5:3], [[7 * every] * 2] * 2


def check_gradients_without_rows(create: Create) -> Iterator[Observed]:
    store, (key,) = create(), new_keys()
    store.init(key, rows(range(6)))
    store.push(key, rows([2], 3) if store.rank == 0 else rows([]))
    yield "of the other workers", held(store, key), both(3, 2)
    store.push(key, rows([]))
    yield "of all workers", pulled(store, key, TABLE), [[0, 0]] * 6
    store.push(key, [rows([]), rows([1])])
    yield "of a device", held(store, key), both(store.num_workers, 1)


def check_rows_of_other_shapes_and_dtypes(create: Create) -> Iterator[Observed]:
    for shape in ((6,), (5, 2, 3), (3000, 40)):
        store, (key,) = create(), new_keys()
        store.init(key, rows(range(shape[0]), 1, shape))
        store.push(key, rows([1, shape[0] - 1], 3, shape))
        want = values(nd.full((2, *shape[1:]), 3 * store.num_workers))
        yield f"{shape}", list(held(store, key, shape).values()), want
    for dtype in ("float16", "float64"):
        store, (key,) = create(), new_keys()
        store.init(key, rows(range(6), 1, dtype=dtype))
        store.push(key, rows([2], 3, dtype=dtype))
        yield dtype, held(store, key, dtype=dtype), both(3 * store.num_workers, 2)


def check_dense_and_row_sparse_gradients_take_turns(create: Create) -> Iterator[Observed]:
    store, (key,) = create(), new_keys()
    every, ids = store.num_workers, nd.array([1, 2], dtype="int64")
    store.init(key, nd.ones(TABLE))
    yield "rows of a dense value", error_of(lambda: some_rows(store, key, ids)), "MXNetError"
    store.push(key, rows([1], 2))
    yield "a row-sparse sum", pulled(store, key, TABLE), [[0, 0], [2 * every] * 2, *[[0, 0]] * 4]
    yield "some of its rows", some_rows(store, key, ids), both(2 * every, 1) | both(0, 2)
    store.push(key, nd.ones(TABLE))
    yield "a dense sum", pulled(store, key, TABLE), [[every] * 2] * 6
    yield "rows of a dense sum", error_of(lambda: some_rows(store, key, ids)), "MXNetError"


def check_numbers_of_rows_of_any_dtype_and_shape(create: Create) -> Iterator[Observed]:
    store, (key,) = create(), new_keys()
    store.init(key, rows(range(6), 4))
    for dtype in ("int64", "int32", "float32"):
        yield dtype, some_rows(store, key, nd.array([3, 0, 3], dtype=dtype)), both(4, 0, 3)
    yield "two dimensions", some_rows(store, key, nd.array([[3, 0], [3, 5]], dtype="int64")), both(4, 0, 3, 5)
    dense = nd.zeros(TABLE)
    yield "dense", error_of(lambda: store.row_sparse_pull(key, out=dense, row_ids=nd.array([1]))), "MXNetError"


def check_pull_leaves_row_sparse_arrays_alone_unless_told(create: Create) -> Iterator[Observed]:
    store, (key,) = create(), new_keys()
    store.init(key, rows(range(6), 4))
    out = rows([1], 9)
    store.pull(key, out=out)
    yield "pull", values(out.indices), [1]
    yield "pull of a dense array", pulled(store, key, TABLE), [[4, 4]] * 6
