"""Values as they were received, which are decoded when they are added up."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hybridps.codecs.codec import Codec, Payload
from hybridps.codecs.loops import PLAIN, take_
from hybridps.compiled import addresses


class Encoded:
    """`size` values of a payload, from number `start` on. A slice selects some of them: `encoded[3:7]`."""

    __slots__ = ("codec", "dtype", "payload", "size", "start")

    def __init__(self, codec: Codec, payload: Payload, size: int, dtype: np.dtype, start: int = 0) -> None:
        """`payload` must have the size that the codec requires."""
        self.codec = codec
        self.payload = codec.readable(payload)
        self.dtype = dtype
        self.size = size
        self.start = start

    @property
    def nbytes(self) -> int:
        """The size of the whole payload in bytes."""
        return self.payload.nbytes

    def __getitem__(self, part: slice) -> Encoded:
        begin, end, _ = part.indices(self.size)
        return Encoded(self.codec, self.payload, max(end - begin, 0), self.dtype, self.start + begin)


Values = np.ndarray | Encoded
"""Flat values of one dtype, as an array or still encoded."""


def decoded(values: Values) -> np.ndarray:
    """Return the values as an array, decoded if necessary."""
    if isinstance(values, np.ndarray):
        return values
    out = np.empty(values.size, values.dtype)
    take_(out, described([values])[0], 0, False)
    return out


def described(rows: Sequence[Values]) -> np.ndarray:
    """Describe to compiled code where it finds values of one dtype.

    Returns the addresses of the arrays (int64). If any values are encoded, returns a row for each, in the form that
    `loops.take_` reads. The caller must hold the values while they are read.
    """
    plain = [row for row in rows if isinstance(row, np.ndarray)]
    if len(plain) == len(rows):
        return addresses(plain)
    sources = np.zeros((len(rows), 4), np.int64)
    for source, row in zip(sources, rows, strict=True):
        if isinstance(row, np.ndarray):
            source[:] = addresses([row])[0], PLAIN, 0, 0
        else:
            source[:] = row.codec.source(row.payload, row.start, row.dtype)
    return sources
