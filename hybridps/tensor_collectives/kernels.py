"""Compiled loops over rows of memory. They work block by block, so that a block is still in cache when it is written.

`rows` are C-contiguous, of shape (rows, elements). Their dtype is float32, float64, int32 or int64, or they hold bits:
uint16 holds float16 and int16 holds bfloat16, which are combined in float32 and rounded once. Rows are combined in
order, so that the result does not depend on which rank combines them. These functions release the interpreter lock.
"""

from __future__ import annotations

from typing import Any

from numba import types
from numba.extending import overload

from hybridps.codecs.bits import from_brain, from_half, to_brain, to_half
from hybridps.compiled import array_at, compiled

SUM, MAX, MIN = 0, 1, 2
CODE = {"sum": SUM, "mean": SUM, "max": MAX, "min": MIN}
"""The code of each operation. A mean is a sum with a divisor."""

BLOCK = 2048
"""The number of elements combined at a time. A block of several rows fits into the first-level cache."""

BITS_OF = {"float16": "uint16", "bfloat16": "int16"}
"""The dtype of rows of bits, for each dtype that is combined in float32."""


def _decode(stored: Any) -> Any:
    """Return the value of an element of a row.

    Where this is inlined, numba removes writes to arrays that a call has returned: pass such arrays as arguments.
    """
    raise NotImplementedError("compiled code only")


def _encode(value: Any, row: Any) -> Any:
    """Return the element of `row` that represents a value."""
    raise NotImplementedError("compiled code only")


@overload(_decode, inline="always")  # type: ignore[misc]
def _decode_of(stored):  # type: ignore[no-untyped-def]
    if stored == types.uint16:
        return lambda stored: from_half(stored)
    if stored == types.int16:
        return lambda stored: from_brain(stored)
    return lambda stored: stored


@overload(_encode, inline="always")  # type: ignore[misc]
def _encode_of(value, row):  # type: ignore[no-untyped-def]
    if row.dtype == types.uint16:
        return lambda value, row: to_half(value)
    if row.dtype == types.int16:
        return lambda value, row: to_brain(value)
    return lambda value, row: value


@compiled
def accumulate_(total, row, op):  # type: ignore[no-untyped-def]
    """Replace `total` by `op` of itself and `row`. NaN takes precedence, as in NumPy."""
    if op == SUM:
        for i in range(total.size):
            total[i] += _decode(row[i])
    elif op == MAX:
        for i in range(total.size):
            value = _decode(row[i])
            total[i] = value if value > total[i] or value != value else total[i]
    else:
        for i in range(total.size):
            value = _decode(row[i])
            total[i] = value if value < total[i] or value != value else total[i]


@compiled
def encode(values, row):  # type: ignore[no-untyped-def]
    """Write `values` to `row`, rounded if the row holds bits."""
    for i in range(row.size):
        row[i] = _encode(values[i], row)


@compiled
def decode(row, out):  # type: ignore[no-untyped-def]
    """Write the values of `row` to `out`."""
    for i in range(out.size):
        out[i] = _decode(row[i])


@compiled
def _add_rows(total, rows, start, stop):  # type: ignore[no-untyped-def]
    """Add the rows after the first one, three in one pass."""
    r = 1
    while r + 2 < rows.shape[0]:
        a, b, c = rows[r, start:stop], rows[r + 1, start:stop], rows[r + 2, start:stop]
        for i in range(total.size):
            total[i] = total[i] + _decode(a[i]) + _decode(b[i]) + _decode(c[i])
        r += 3
    while r < rows.shape[0]:
        accumulate_(total, rows[r, start:stop], SUM)
        r += 1


@compiled
def _combine_block(total, rows, op, start, stop):  # type: ignore[no-untyped-def]
    """Replace `total`, which is row 0, by `op` over all rows."""
    if op == SUM:
        _add_rows(total, rows, start, stop)
    else:
        for r in range(1, rows.shape[0]):
            accumulate_(total, rows[r, start:stop], op)


@compiled
def _divide(total, divisor):  # type: ignore[no-untyped-def]
    if divisor != 1:
        for i in range(total.size):
            total[i] /= divisor


@compiled
def work_at(address, size, like):  # type: ignore[no-untyped-def]
    """Return the memory at `address` in which blocks are combined, for rows of the dtype of the element `like`."""
    return array_at(address, (size,), _decode(like))


@compiled
def find_not_finite(rows, start, stop):  # type: ignore[no-untyped-def]
    """Return a row with NaN or Inf among elements `start:stop`, and its first such element; -1 and 0 if there is none.

    It examines sums of two rows, so that both rows are read from memory at the same time, as in combining.
    """
    found = False
    for r in range(0, rows.shape[0], 2):
        a, b = rows[r, start:stop], rows[min(r + 1, rows.shape[0] - 1), start:stop]
        for i in range(stop - start):
            value = _decode(a[i]) + _decode(b[i])
            found |= value - value != 0
    if found:
        for r in range(rows.shape[0]):
            for i in range(start, stop):
                value = _decode(rows[r, i])
                if value - value != 0:
                    return r, i
    return -1, 0


@compiled
def combine_(rows, op, divisor, part, work, in_place):  # type: ignore[no-untyped-def]
    """Replace elements `start:stop` of rows `first:last` by `op` over all rows, divided by `divisor`.

    `part`: start, stop, first, last, and looks. `work`: the memory in which blocks are combined, of the dtype of their
    values. With `in_place` it is row 0, which must be a target and hold no bits; otherwise it is scratch memory of
    `BLOCK` elements. With `looks`, returns a row that had NaN or Inf and its first such element; otherwise, or if there
    is none, returns -1 and 0.
    """
    start, stop, first, last, looks = part
    bad_row, bad_element = -1, 0
    for begin in range(start, stop, BLOCK):
        end = min(begin + BLOCK, stop)
        offset = begin if in_place else 0
        total = work[offset : offset + end - begin]
        if looks and bad_row < 0:
            bad_row, bad_element = find_not_finite(rows, begin, end)
        if not in_place:
            decode(rows[0, begin:end], total)
        _combine_block(total, rows, op, begin, end)
        _divide(total, divisor)
        for r in range(first + in_place, last):
            encode(total, rows[r, begin:end])
    return bad_row, bad_element


@compiled
def fold(rows, op, start, stop, out):  # type: ignore[no-untyped-def]
    """Set `out` to `op` over elements `start:stop` of all rows. `out` may be these elements of row 0."""
    for begin in range(start, stop, BLOCK):
        end = min(begin + BLOCK, stop)
        total = out[begin - start : end - start]
        decode(rows[0, begin:end], total)
        _combine_block(total, rows, op, begin, end)


@compiled
def spread(total, divisor, rows, start, stop, first, last):  # type: ignore[no-untyped-def]
    """Set elements `start:stop` of rows `first:last` to `total` divided by `divisor`; `total` is divided as well."""
    for begin in range(start, stop, BLOCK):
        end = min(begin + BLOCK, stop)
        block = total[begin - start : end - start]
        _divide(block, divisor)
        for r in range(first, last):
            encode(block, rows[r, begin:end])
