"""The base class of codecs, and the codec that changes nothing."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from hybridps.codecs.loops import PLAIN, take_
from hybridps.compiled import addresses
from hybridps.errors import LayoutError

Payload = np.ndarray | memoryview | bytes
"""Contiguous bytes (uint8), which need not be aligned or writable."""


class Codec(ABC):
    """How arrays of some dtypes are written as bytes. Arrays are flat and contiguous.

    Methods that take an array and a payload raise LayoutError if the payload does not have `nbytes(array.size,
    array.dtype)` bytes, or if the codec does not take arrays of that dtype.
    """

    name: str
    exact: bool = False
    """Whether the payload is the bytes of the values themselves."""
    shares: bool = False
    """Whether readers in shared memory may use the values themselves, because the codec does not round the values that
    it is meant for."""
    form: int
    """How compiled code reads a payload: one of the forms of `hybridps.codecs.loops`."""

    def __init__(self, *dtypes: str) -> None:
        self.dtypes = dtypes
        """The dtypes of values that the codec takes."""
        self._known: dict[str | np.dtype, np.dtype] = {}
        """The dtypes by name and by dtype. Messages are small, so that a conversion would cost noticeable time."""
        for dtype in dtypes:
            self._known |= {dtype: np.dtype(dtype), np.dtype(dtype): np.dtype(dtype)}

    @property
    def answers(self) -> Codec:
        """The codec of the answer to values that use this one."""
        return self

    @abstractmethod
    def encode(self, values: np.ndarray, out: np.ndarray) -> None:
        """Write `values` to `out` (uint8)."""

    def decode(self, payload: Payload, out: np.ndarray) -> None:
        """Replace the values in `out` by those of `payload`."""
        self._take(payload, out, False)

    def add(self, payload: Payload, total: np.ndarray) -> None:
        """Add the values of `payload` to `total`."""
        self._take(payload, total, True)

    def source(self, payload: np.ndarray, first: int, dtype: np.dtype) -> tuple[int, int, int, int]:
        """Describe a payload from value number `first` on, in the form that `loops.take_` reads.

        The caller must hold the payload while the description is used.
        """
        return int(addresses([payload])[0]), self.form, first, 0

    def readable(self, payload: Payload) -> np.ndarray:
        """Return the payload as uint8 in memory that compiled code can read. It is copied if its address is odd."""
        given = payload if isinstance(payload, np.ndarray) else np.frombuffer(payload, np.uint8)
        return given.copy() if int(addresses([given])[0]) % 2 else given

    def prepare(self) -> None:
        """Compile what the other methods need. Otherwise their first call compiles, which can take seconds."""
        for dtype in self.dtypes:
            nothing = np.zeros(0, dtype)
            self.encode(nothing, np.zeros(0, np.uint8))
            self.decode(b"", nothing)
            self.add(b"", nothing)

    def nbytes(self, elements: int, dtype: str | np.dtype) -> int:
        """Return the size in bytes of the payload for `elements` values of `dtype`."""
        try:
            return self._nbytes(elements, self._known[dtype])
        except KeyError:
            raise LayoutError(
                f"the codec {self.name!r} does not take {dtype}: use one of {', '.join(self.dtypes)}"
            ) from None

    @abstractmethod
    def _nbytes(self, elements: int, dtype: np.dtype) -> int:
        """Return the size in bytes of the payload for `elements` values of a dtype that the codec takes."""

    def _take(self, payload: Payload, out: np.ndarray, adds: bool) -> None:
        given = self.readable(self._bytes(payload, out))
        take_(out, np.array(self.source(given, 0, out.dtype), np.int64), 0, adds)

    def _bytes(self, payload: Payload, values: np.ndarray) -> np.ndarray:
        """Return the payload as uint8. Raises LayoutError if its size does not match `values`."""
        given = payload if isinstance(payload, np.ndarray) else np.frombuffer(payload, np.uint8)
        needed = self.nbytes(values.size, values.dtype)
        if given.nbytes != needed:
            raise LayoutError(
                f"{values.size} values of {values.dtype} take {needed} bytes with the codec {self.name!r}, "
                f"not {given.nbytes}"
            )
        return given


class Exact(Codec):
    """The codec whose payload is the bytes of the values themselves."""

    name = "exact"
    exact = True
    shares = True
    form = PLAIN

    def encode(self, values: np.ndarray, out: np.ndarray) -> None:
        self._bytes(out, values)[...] = values.view(np.uint8)

    def decode(self, payload: Payload, out: np.ndarray) -> None:
        out.view(np.uint8)[...] = self._bytes(payload, out)

    def add(self, payload: Payload, total: np.ndarray) -> None:
        np.add(total, self._bytes(payload, total).view(total.dtype), out=total)

    def _nbytes(self, elements: int, dtype: np.dtype) -> int:
        return elements * dtype.itemsize
