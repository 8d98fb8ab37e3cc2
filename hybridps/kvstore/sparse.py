"""MXNet's row-sparse arrays: gradients, and arrays whose rows become known later."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import cache

import mxnet as mx
import numpy as np
from mxnet.ndarray import NDArray

from hybridps.errors import HybridPSError, LayoutError
from hybridps.kvstore.arrays import dtype_of, operate
from hybridps.step import SparseGradients, SparseRows

_NAME = "hybridps_rows"
_reads: dict[int, Callable[[NDArray], SparseRows]] = {}
_numbers = itertools.count(1)


class _Rows(mx.operator.CustomOp):  # type: ignore[misc]
    """Reads the rows of a row-sparse array on an MXNet thread. Only such an operator may change the number of rows."""

    def __init__(self, number: int, shape: tuple[int, ...], dtype: str) -> None:
        super().__init__()
        self._read, self._shape, self._dtype = _reads.pop(number), shape, dtype

    def forward(
        self, is_train: bool, req: list[str], in_data: list[NDArray], out_data: list[NDArray], aux: object
    ) -> None:
        ids, values = self._read(in_data[0])
        definition = (values.astype(self._dtype, copy=False), ids)
        self.assign(out_data[0], req[0], mx.nd.sparse.row_sparse_array(definition, self._shape, dtype=self._dtype))


@mx.operator.register(_NAME)
class _RowsOperator(mx.operator.CustomOpProp):  # type: ignore[misc]
    """The operator as MXNet registers it. Its parameters arrive as text."""

    def __init__(self, number: str, dtype: str, shape: str) -> None:
        super().__init__(need_top_grad=False)
        self._number, self._dtype, self._shape = int(number), dtype, tuple(int(extent) for extent in shape.split())

    def list_arguments(self) -> list[str]:
        return ["source"]

    def infer_shape(self, shapes: list[object]) -> tuple[object, ...]:
        return shapes, [self._shape], []

    def infer_type(self, types: list[object]) -> tuple[object, ...]:
        return types, [np.dtype(self._dtype).type], []

    def infer_storage_type(self, kinds: list[str]) -> tuple[object, ...]:
        return kinds, ["row_sparse"], []

    def create_operator(self, context: object, shapes: object, types: object) -> _Rows:
        return _Rows(self._number, self._shape, self._dtype)


def row_sparse_from(
    source: NDArray, read: Callable[[NDArray], SparseRows], shape: Sequence[int], dtype: str
) -> NDArray:
    """Return a row-sparse CPU array with the rows that `read(source)` returns once `source` can be read.

    Returns at once; MXNet's engine makes users of the array wait. `read` is called on an MXNet thread.
    """
    number = next(_numbers)
    _reads[number] = read
    given = {"number": number, "dtype": dtype, "shape": " ".join(str(extent) for extent in shape)}
    # MXNet never frees the memory of an array that a custom operator has filled, unless the array had memory before.
    out = _one_row(tuple(shape), dtype).copyto(mx.cpu())
    return mx.nd.Custom(source, op_type=_NAME, out=out, **given)


@cache
def _one_row(shape: tuple[int, ...], dtype: str) -> NDArray:
    return mx.nd.sparse.row_sparse_array((np.zeros((1, *shape[1:]), dtype), [0]), shape, dtype=dtype)


def all_rows(array: NDArray) -> NDArray:
    """Return a row-sparse copy of a dense array with all rows, including rows of zeros, which optimizers need."""

    def read(source: NDArray) -> SparseRows:
        return SparseRows(np.arange(source.shape[0]), source.asnumpy())

    return row_sparse_from(array, read, array.shape, np.dtype(array.dtype).name)


def retained(stored: NDArray, row_ids: NDArray) -> NDArray:
    """Return some rows of a row-sparse array as a row-sparse array. Waits for `row_ids`, in any order, with repeats.

    Raises LayoutError for a row that the array does not have.
    """
    ids = np.unique(row_ids.asnumpy()).astype(np.int64)  # ascending: otherwise lookups in the array miss rows
    for extreme in ids[[0, -1]] if ids.size else ():
        if not 0 <= extreme < stored.shape[0]:
            raise LayoutError(f"row {extreme} is asked for of an array of {stored.shape[0]} rows")
    if not ids.size:
        return mx.nd.sparse.zeros("row_sparse", stored.shape, dtype=stored.dtype)
    return mx.nd.sparse.retain(stored, mx.nd.array(ids, stored.context, "int64"))


class SparseArrays:
    """The row-sparse gradients of a store as MXNet arrays. Used by the program's thread."""

    def __init__(self, gradients: SparseGradients) -> None:
        self._gradients = gradients

    def sum(self, name: str, values: Sequence[NDArray], weight: NDArray, priority: int) -> NDArray:
        """Begin to sum row-sparse gradients over devices and workers. Return the row-sparse array for the sum.

        The sum has the dtype of `weight`. Raises LayoutError for gradients of another shape.
        """
        shape, dtype = weight.shape, np.dtype(weight.dtype).name
        other = next((value.shape for value in values if value.shape != shape), shape)
        if other != shape:
            raise LayoutError(f"the gradient of key {name!r} has the shape {other}, but the key has {shape}")
        if name not in self._gradients:
            self._gradients.lay_out(name, dtype_of(weight), shape)
        # Nobody else writes to these copies, so they can be read whenever the turn of the sum comes.
        copies = [value.copyto(mx.cpu()) for value in values]
        item = self._gradients.push(name, lambda: _add_up([_rows_of(copy) for copy in copies], name, shape[0]))
        done = mx.nd.empty((1,))
        operate([done], item, priority, copies)
        return row_sparse_from(done, lambda _: item.rows, shape, dtype)

    def close(self) -> None:
        """Drop the tables. May be called from any thread, once."""
        self._gradients.close()


def _rows_of(array: NDArray) -> SparseRows:
    """Read an array on the communication thread. MXNet must not bulk its operations there: that has crashed."""
    with mx.engine.bulk(0):
        return SparseRows(array.indices.asnumpy(), array.data.asnumpy())


def _add_up(parts: Sequence[SparseRows], name: str, count: int) -> SparseRows:
    """Return the sum of the devices' rows. The rows may be in any order; the array has `count` rows."""
    ids = np.concatenate([part.ids for part in parts])
    values = parts[0].values if len(parts) == 1 else np.concatenate([part.values for part in parts])
    if ids.size and not 0 <= ids.min() <= ids.max() < count:
        raise HybridPSError(f"the gradient of key {name!r} has rows {ids.min()} to {ids.max()}; the array has {count}")
    if (np.diff(ids) > 0).all():
        return SparseRows(ids, values)
    once, places = np.unique(ids, return_inverse=True)
    order = np.argsort(places, kind="stable")
    starts = np.searchsorted(places[order], np.arange(len(once)))
    return SparseRows(once, np.add.reduceat(values[order], starts))
