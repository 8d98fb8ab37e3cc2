"""Sums of squares over the parts of a flat buffer, in one pass that allocates nothing."""

from __future__ import annotations

import numpy as np

from hybridps.compiled import compiled_sums

BLOCK = 4096
"""The number of elements that are summed in the buffer's own dtype. The sums of blocks are added in float64."""


def squares_(out: np.ndarray, edges: np.ndarray, values: np.ndarray) -> None:
    """Set `out[k]` to the sum of the squares of elements `edges[k]:edges[k + 1]`.

    `out`: float64. `edges`: int64, with one element more than `out`. `values`: float16, float32 or float64.
    """
    _squares_(out, edges, *_summable(values))


def squared_distances_(out: np.ndarray, edges: np.ndarray, values: np.ndarray, others: np.ndarray) -> None:
    """Set `out[k]` to the sum of `(values - others)^2` over `edges[k]:edges[k + 1]`. Dtypes as in `squares_`."""
    _squared_distances_(out, edges, *_summable(values, others))


def _summable(*arrays: np.ndarray) -> list[np.ndarray]:
    """Return the arrays in a dtype that has compiled loops. Float16, which is rare, is converted to float32."""
    return [array.astype(np.float32) if array.dtype == np.float16 else array for array in arrays]


@compiled_sums
def _squares_(out, edges, values):  # type: ignore[no-untyped-def]
    for k in range(out.size):
        total = 0.0
        for begin in range(edges[k], edges[k + 1], BLOCK):
            block = values[begin : min(begin + BLOCK, edges[k + 1])]
            part = values.dtype.type(0)
            for i in range(block.size):
                part += block[i] * block[i]
            total += part
        out[k] = total


@compiled_sums
def _squared_distances_(out, edges, values, others):  # type: ignore[no-untyped-def]
    for k in range(out.size):
        total = 0.0
        for begin in range(edges[k], edges[k + 1], BLOCK):
            block = values[begin : min(begin + BLOCK, edges[k + 1])]
            other = others[begin : begin + block.size]
            part = values.dtype.type(0)
            for i in range(block.size):
                difference = block[i] - other[i]
                part += difference * difference
            total += part
        out[k] = total
