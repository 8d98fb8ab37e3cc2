"""Values that are small multiples of one number, as gradient compression makes a group's gradients."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
import numpy as np
from msgspec import Meta

from hybridps.codecs.codec import Codec, Exact
from hybridps.compiled import addresses, compiled

LARGEST = 1e30
"""The largest threshold."""


class Quantised(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How gradients are compressed: to 1 or 2 bits for each value of a worker. All groups of a table agree on it.

    With 2 bits a worker contributes `threshold`, its negative, or 0; with 1 bit it contributes 1 or -1. The
    contribution of a group is the sum over its workers. `workers` is the number of workers in the largest group. Raises
    ValueError for a threshold that cannot be used.
    """

    bits: Literal[1, 2]
    threshold: Annotated[float, Meta(ge=-LARGEST, le=LARGEST)]
    workers: Annotated[int, Meta(ge=1)] = 1

    def __post_init__(self) -> None:
        if not -LARGEST <= self.threshold <= LARGEST:
            raise ValueError(f"the threshold {self.threshold} cannot be used: give a number")
        if self.bits == 2 and self.threshold <= 0:
            raise ValueError(f"the threshold {self.threshold} of 2 bits cannot be used: give a number > 0")

    @property
    def unit(self) -> float:
        """A group's contribution is a multiple of this number."""
        return self.threshold if self.bits == 2 else 1.0

    def codec(self, exact: Exact) -> Codec:
        """Return the codec of the contributions; `exact` for groups that are too large for packing to save bytes."""
        return Packed(self, exact) if self.workers <= Packed.MOST else exact


class Packed(Codec):
    """Multiples of the unit of `spec`, from -workers to workers, in the fewest bits that fill a byte: 1, 2, 4 or 8.

    Any other value becomes the nearest multiple. A payload begins with a byte of its own, so that any part of a buffer
    can be one. Answers are exact.
    """

    shares = True
    MOST = 127
    """The largest number of workers in a group."""

    def __init__(self, spec: Quantised, exact: Exact) -> None:
        super().__init__("float32", "float64")
        self.name = f"{spec.bits}bit"
        self._answers = exact
        self._unit = spec.unit
        self._workers = spec.workers
        has_zero = spec.bits == 2 or spec.workers > 1
        levels = 2 * spec.workers + 1 if has_zero else 2
        self._bits = next(bits for bits in (1, 2, 4, 8) if 1 << bits >= levels)
        self.form = 8 // self._bits
        multiples = np.arange(-spec.workers, spec.workers + 1, 1 if has_zero else 2)
        self._tables = {
            dtype: _table(multiples.astype(dtype) * np.dtype(dtype).type(spec.unit), self._bits)
            for dtype in self.dtypes
        }

    @property
    def answers(self) -> Codec:
        return self._answers

    def encode(self, values: np.ndarray, out: np.ndarray) -> None:
        unit = values.dtype.type(self._unit)
        _pack(values, self._bytes(out, values), unit, self._workers, self._bits)

    def source(self, payload: np.ndarray, first: int, dtype: np.dtype) -> tuple[int, int, int, int]:
        address, table = addresses([payload, self._tables[dtype.name]])
        return int(address), self.form, first, int(table)

    def readable(self, payload: np.ndarray | memoryview | bytes) -> np.ndarray:
        return payload if isinstance(payload, np.ndarray) else np.frombuffer(payload, np.uint8)

    def _nbytes(self, elements: int, dtype: np.dtype) -> int:
        return -(-elements // self.form)


def _table(values: np.ndarray, bits: int) -> np.ndarray:
    """Return, for each byte, the values of its codes, flat. Unused codes have the value 0."""
    codes = np.arange(256)[:, None] >> np.arange(0, 8, bits) & (1 << bits) - 1
    known = np.zeros(1 << bits, values.dtype)
    known[: len(values)] = values
    return known[codes].reshape(-1)


@compiled
def _pack(values, out, unit, workers, bits):  # type: ignore[no-untyped-def]
    if bits == 1:
        _pack_signs(values, out)
    elif bits == 2:
        _pack_codes(values, out, unit, workers, 2)
    elif bits == 4:
        _pack_codes(values, out, unit, workers, 4)
    else:
        _pack_codes(values, out, unit, workers, 8)


@compiled
def _pack_signs(values, out):  # type: ignore[no-untyped-def]
    for b in range(out.size):
        part = values[8 * b : 8 * b + 8]
        byte = 0
        for i in range(part.size):
            byte |= (part[i] > 0) << i
        out[b] = byte


@compiled
def _pack_codes(values, out, unit, workers, bits):  # type: ignore[no-untyped-def]
    each = 8 // bits
    whole = values.size // each
    for b in range(whole):
        byte = 0
        for i in range(each):
            byte |= _code(values[b * each + i], unit, workers) << i * bits
        out[b] = byte
    if whole < out.size:
        byte = 0
        for i in range(whole * each, values.size):
            byte |= _code(values[i], unit, workers) << (i - whole * each) * bits
        out[whole] = byte


@compiled
def _code(value, unit, workers):  # type: ignore[no-untyped-def]
    """Return the number of the multiple nearest to `value`, counted from -workers. NaN becomes the lowest."""
    multiple = value / unit
    if not multiple > -workers:
        return 0
    return int(min(multiple, workers) + workers + 0.5)
