"""Codecs: how values travel. A codec says how many bytes an array takes on the wire, and writes and reads them.

    codec = codec_of("float16")
    payload = np.empty(codec.nbytes(len(values), values.dtype), np.uint8)
    codec.encode(values, payload)
    codec.decode(payload, out)

A lossy codec is never used in shared memory: who shares memory reads the values themselves.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from hybridps.compiled import compiled
from hybridps.errors import ConfigError, LayoutError

Payload = np.ndarray | memoryview | bytes
"""Contiguous bytes (uint8); they need not be aligned or writable."""


class Codec(ABC):
    """How arrays of some dtypes are written as bytes. Arrays are flat and contiguous.

    All methods that take an array and a payload raise LayoutError if the payload does not have
    `nbytes(array.size, array.dtype)` bytes, or if the codec does not take arrays of that dtype.
    """

    name: str
    exact: bool
    """Whether decoded values have the bits of the encoded ones."""

    def __init__(self, bytes_of_value: dict[str, int]) -> None:
        self.dtypes = tuple(bytes_of_value)
        """The dtypes of values that the codec takes."""
        self._bytes_of_value: dict[str | np.dtype, int] = {}
        """By name and by dtype: messages are small, so that a conversion would show."""
        for dtype, nbytes in bytes_of_value.items():
            self._bytes_of_value |= {dtype: nbytes, np.dtype(dtype): nbytes}

    @abstractmethod
    def encode(self, values: np.ndarray, out: np.ndarray) -> None:
        """Write `values` to `out` (uint8)."""

    @abstractmethod
    def decode(self, payload: Payload, out: np.ndarray) -> None:
        """Replace the values in `out` by those of `payload`."""

    @abstractmethod
    def add(self, payload: Payload, total: np.ndarray) -> None:
        """Add the values of `payload` to `total`."""

    def prepare(self) -> None:
        """Compile what the other methods need. Otherwise their first call does, which can take seconds."""
        for dtype in self.dtypes:
            nothing = np.zeros(0, dtype)
            self.encode(nothing, np.zeros(0, np.uint8))
            for payload in (b"", np.zeros(0, np.uint8)):  # compiled code tells read-only memory from other memory
                self.decode(payload, nothing)
                self.add(payload, nothing)

    def nbytes(self, elements: int, dtype: str | np.dtype) -> int:
        """Size of the payload for `elements` values of `dtype`."""
        try:
            return elements * self._bytes_of_value[dtype]
        except KeyError:
            raise LayoutError(
                f"the codec {self.name!r} does not take {dtype}: use one of {', '.join(self.dtypes)}"
            ) from None

    def _bytes(self, payload: Payload, values: np.ndarray) -> np.ndarray:
        """The payload as uint8. Raises LayoutError if it does not have the size of `values`."""
        given = payload if isinstance(payload, np.ndarray) else np.frombuffer(payload, np.uint8)
        needed = self.nbytes(values.size, values.dtype)
        if given.nbytes != needed:
            raise LayoutError(
                f"{values.size} values of {values.dtype} take {needed} bytes with the codec {self.name!r}, "
                f"not {given.nbytes}"
            )
        return given


class Exact(Codec):
    """The bytes of the values themselves."""

    name = "exact"
    exact = True

    def encode(self, values: np.ndarray, out: np.ndarray) -> None:
        self._bytes(out, values)[...] = values.view(np.uint8)

    def decode(self, payload: Payload, out: np.ndarray) -> None:
        out.view(np.uint8)[...] = self._bytes(payload, out)

    def add(self, payload: Payload, total: np.ndarray) -> None:
        np.add(total, self._bytes(payload, total).view(total.dtype), out=total)


class Float16(Codec):
    """Half precision: each value becomes the nearest float16, a tie the even one; larger ones become infinite."""

    name = "float16"
    exact = False

    def encode(self, values: np.ndarray, out: np.ndarray) -> None:
        _encode(values, self._bytes(out, values).view(np.uint16))

    def decode(self, payload: Payload, out: np.ndarray) -> None:
        _decode(self._halves(payload, out), out)

    def add(self, payload: Payload, total: np.ndarray) -> None:
        _add(self._halves(payload, total), total)

    def _halves(self, payload: Payload, values: np.ndarray) -> np.ndarray:
        """The payload as the bits of float16."""
        halves = self._bytes(payload, values).view(np.uint16)
        return halves if halves.flags.aligned else halves.copy()


CODECS: dict[str, Codec] = {
    "exact": Exact({"float16": 2, "float32": 4, "float64": 8, "int32": 4, "int64": 8}),
    "float16": Float16({"float32": 2, "float64": 2}),
}


def codec_of(name: str) -> Codec:
    """Raises ConfigError for an unknown name."""
    if name not in CODECS:
        raise ConfigError(f"the codec {name!r} is unknown: use one of {', '.join(CODECS)}")
    return CODECS[name]


@intrinsic  # type: ignore[misc]
def from_half(typing_context: Any, bits: Any) -> Any:
    """The float32 of the bits of a float16."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fpext(builder.bitcast(arguments[0], ir.HalfType()), ir.FloatType())

    return types.float32(types.uint16), generate


@intrinsic  # type: ignore[misc]
def to_half(typing_context: Any, value: Any) -> Any:
    """The bits of the float16 nearest to a float32; ties go to even."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(builder.fptrunc(arguments[0], ir.HalfType()), ir.IntType(16))

    return types.uint16(types.float32), generate


@intrinsic  # type: ignore[misc]
def _to_single(typing_context: Any, value: Any) -> Any:
    """A float32 itself, or that of a float64, rounded to odd: cut off, and the last bit set where that lost something.

    Rounding the result to float16 then gives the float16 nearest to the float64; rounding to the nearest twice does
    not (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008).
    """
    if value == types.float32:
        return types.float32(types.float32), lambda context, builder, signature, arguments: arguments[0]
    word = ir.IntType(32)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        value = arguments[0]
        nearest = builder.fptrunc(value, ir.FloatType())
        back = builder.fpext(nearest, ir.DoubleType())
        bits = builder.bitcast(nearest, word)
        positive = builder.fcmp_ordered(">", value, ir.Constant(ir.DoubleType(), 0.0))
        above, below = builder.fcmp_ordered(">", back, value), builder.fcmp_ordered("<", back, value)
        too_large = builder.select(positive, above, below)
        cut = builder.sub(bits, builder.zext(too_large, word))
        lost = builder.zext(builder.or_(above, below), word)
        return builder.bitcast(builder.or_(cut, lost), ir.FloatType())

    return types.float32(types.float64), generate


@compiled
def _encode(values, halves):  # type: ignore[no-untyped-def]
    for i in range(halves.size):
        halves[i] = to_half(_to_single(values[i]))


@compiled
def _decode(halves, out):  # type: ignore[no-untyped-def]
    for i in range(out.size):
        out[i] = from_half(halves[i])


@compiled
def _add(halves, total):  # type: ignore[no-untyped-def]
    for i in range(total.size):
        total[i] += from_half(halves[i])
