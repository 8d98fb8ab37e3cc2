"""Values as they came, which are decoded where they are added up."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hybridps.codecs.codec import Codec, Payload
from hybridps.codecs.loops import PLAIN, take_
from hybridps.compiled import addresses


class Encoded:
    """`size` values of a payload, from number `start` on. It is cut as an array is: `encoded[3:7]`."""

    __slots__ = ("codec", "dtype", "payload", "size", "start")

    def __init__(self, codec: Codec, payload: Payload, size: int, dtype: np.dtype, start: int = 0) -> None:
        """`payload` has the size that the codec says."""
        self.codec = codec
        self.payload = codec.readable(payload)
        self.dtype = dtype
        self.size = size
        self.start = start

    @property
    def nbytes(self) -> int:
        """Of the whole payload."""
        return self.payload.nbytes

    def __getitem__(self, part: slice) -> Encoded:
        begin, end, _ = part.indices(self.size)
        return Encoded(self.codec, self.payload, max(end - begin, 0), self.dtype, self.start + begin)


Values = np.ndarray | Encoded
"""Flat values of one dtype, as an array or as they came."""


def decoded(values: Values) -> np.ndarray:
    """The values, decoded if they are not yet."""
    if isinstance(values, np.ndarray):
        return values
    out = np.empty(values.size, values.dtype)
    take_(out, described([values])[0], 0, False)
    return out


def described(rows: Sequence[Values]) -> np.ndarray:
    """Where compiled code finds values of one dtype: the addresses of arrays; if any are encoded, a row for each, as
    `loops.take_` reads it.

    The caller must hold the values while they are read.
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
