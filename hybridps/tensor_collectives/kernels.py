"""Compiled loops over the rows of a node: one pass over the memory, without the interpreter lock.

`rows` is a two-dimensional array, one row for each vector of each rank of the node. Beside each kernel
stands what it does in NumPy.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

SUM, MAX, MIN = 0, 1, 2
OPERATIONS = {"sum": SUM, "mean": SUM, "max": MAX, "min": MIN}

BLOCK = 2048
"""Elements worked on at a time: the blocks of all rows together stay in the first two caches."""

_yield = types.ExternalFunction("sched_yield", types.int32())


@intrinsic  # type: ignore[misc]
def _load(typing_context: Any, array: Any, index: Any) -> Any:
    """`array[index]` of int64, read from memory now, and before anything that follows."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _pointer(context, builder, signature, arguments)
        return builder.load_atomic(pointer, "acquire", 8)

    return types.int64(array, index), generate


@intrinsic  # type: ignore[misc]
def _store(typing_context: Any, array: Any, index: Any, value: Any) -> Any:
    """`array[index] = value` of int64, seen by others only after everything before it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _pointer(context, builder, signature, arguments)
        builder.store_atomic(arguments[2], pointer, "release", 8)
        return context.get_dummy_value()

    return types.void(array, index, types.int64), generate


def _pointer(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    array = context.make_array(signature.args[0])(context, builder, arguments[0])
    return builder.gep(array.data, [arguments[1]])


@intrinsic  # type: ignore[misc]
def _from_half(typing_context: Any, bits: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fpext(builder.bitcast(arguments[0], ir.HalfType()), ir.FloatType())

    return types.float32(types.uint16), generate


@intrinsic  # type: ignore[misc]
def _to_half(typing_context: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(builder.fptrunc(arguments[0], ir.HalfType()), ir.IntType(16))

    return types.uint16(types.float32), generate


@njit(nogil=True, cache=True)  # type: ignore[misc]
def wait_for_all(counters, stride, mine, target, tries):  # type: ignore[no-untyped-def]
    """Count myself in, and wait until every rank's counter is `target`; the first missing rank, or -1.

    `counters`: int64, rank r's at `r * stride`. Gives up after `tries` looks, without the lock.
    """
    _store(counters, mine * stride, target)
    missing = -1
    for look in range(tries):
        missing = -1
        for rank in range(len(counters) // stride):
            if _load(counters, rank * stride) < target:
                missing = rank
                break
        if missing < 0:
            return missing
        if look > 200:
            _yield()
    return missing


@njit(nogil=True, cache=True)  # type: ignore[misc]
def combine_rows(rows, first, last, start, stop, operation, divisor):  # type: ignore[no-untyped-def]
    """Elements `start:stop` of rows `first:last` become `operation` over all rows, divided by `divisor` if > 1.

    NumPy: `rows[first:last, start:stop] = rows[:, start:stop].sum(axis=0) / divisor`, rows in order.
    """
    total = np.empty(BLOCK, rows.dtype)
    for begin in range(start, stop, BLOCK):
        size = min(BLOCK, stop - begin)
        part = total[:size]
        part[:] = rows[0, begin : begin + size]
        for row in range(1, rows.shape[0]):
            other = rows[row, begin : begin + size]
            if operation == SUM:
                for i in range(size):
                    part[i] += other[i]
            elif operation == MAX:
                for i in range(size):
                    part[i] = max(part[i], other[i])
            else:
                for i in range(size):
                    part[i] = min(part[i], other[i])
        if divisor > 1:
            for i in range(size):
                part[i] /= divisor
        for row in range(first, last):
            rows[row, begin : begin + size] = part


@njit(nogil=True, cache=True)  # type: ignore[misc]
def combine_half_rows(rows, first, last, start, stop, operation, divisor):  # type: ignore[no-untyped-def]
    """`combine_rows` for the bits of float16 (uint16): combined in float32, and rounded once."""
    total = np.empty(BLOCK, np.float32)
    packed = np.empty(BLOCK, np.uint16)
    for begin in range(start, stop, BLOCK):
        size = min(BLOCK, stop - begin)
        for i in range(size):
            total[i] = _from_half(rows[0, begin + i])
        for row in range(1, rows.shape[0]):
            if operation == SUM:
                for i in range(size):
                    total[i] += _from_half(rows[row, begin + i])
            elif operation == MAX:
                for i in range(size):
                    total[i] = max(total[i], _from_half(rows[row, begin + i]))
            else:
                for i in range(size):
                    total[i] = min(total[i], _from_half(rows[row, begin + i]))
        if divisor > 1:
            for i in range(size):
                total[i] /= np.float32(divisor)
        for i in range(size):
            packed[i] = _to_half(total[i])
        for row in range(first, last):
            rows[row, begin : begin + size] = packed[:size]
