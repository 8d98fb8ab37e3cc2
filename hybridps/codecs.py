"""Codecs: how values travel. A codec says how many bytes an array takes on the wire, and writes and reads them.

    codec = codec_of("float16")
    payload = np.empty(codec.nbytes(len(values), values.dtype), np.uint8)
    codec.encode(values, payload)
    codec.decode(payload, out)

A lossy codec is never used in shared memory: who shares memory reads the values themselves.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from hybridps.compiled import compiled
from hybridps.errors import ConfigError, LayoutError

Payload = np.ndarray | memoryview | bytes
"""Contiguous bytes (uint8); they need not be aligned or writable."""


class Codec(Protocol):
    """How arrays of some dtypes are written as bytes. Arrays are flat and contiguous.

    All methods that take an array and a payload raise LayoutError if the payload does not have
    `nbytes(array.size, array.dtype)` bytes, or if the codec does not take arrays of that dtype.
    """

    name: str
    dtypes: tuple[str, ...]
    """The dtypes of values that the codec takes."""
    exact: bool
    """Whether decoded values have the bits of the encoded ones."""

    def nbytes(self, elements: int, dtype: str | np.dtype) -> int:
        """Size of the payload for `elements` values of `dtype`."""

    def encode(self, values: np.ndarray, out: np.ndarray) -> None:
        """Write `values` to `out` (uint8)."""

    def decode(self, payload: Payload, out: np.ndarray) -> None:
        """Replace the values in `out` by those of `payload`."""

    def add(self, payload: Payload, total: np.ndarray) -> None:
        """Add the values of `payload` to `total`."""

    def prepare(self) -> None:
        """Compile what the other methods need. Otherwise their first call does, which can take seconds."""


class _Sized:
    """A codec that writes every value of a dtype in the same number of bytes."""

    name: str
    dtypes: tuple[str, ...]

    def __init__(self, bytes_of_value: dict[str, int]) -> None:
        self.dtypes = tuple(bytes_of_value)
        self._bytes_of_value: dict[str | np.dtype, int] = {}
        """By name and by dtype: messages are small, so that a conversion would show."""
        for dtype, nbytes in bytes_of_value.items():
            self._bytes_of_value |= {dtype: nbytes, np.dtype(dtype): nbytes}

    def nbytes(self, elements: int, dtype: str | np.dtype) -> int:
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


class Exact(_Sized):
    """The bytes of the values themselves."""

    name = "exact"
    exact: bool = True

    def encode(self, values: np.ndarray, out: np.ndarray) -> None:
        self._bytes(out, values)[...] = values.view(np.uint8)

    def decode(self, payload: Payload, out: np.ndarray) -> None:
        out.view(np.uint8)[...] = self._bytes(payload, out)

    def add(self, payload: Payload, total: np.ndarray) -> None:
        np.add(total, self._bytes(payload, total).view(total.dtype), out=total)

    def prepare(self) -> None:
        pass


class Float16(_Sized):
    """Half precision: each value becomes the nearest float16, a tie the even one; larger ones become infinite."""

    name = "float16"
    exact: bool = False

    def encode(self, values: np.ndarray, out: np.ndarray) -> None:
        halves = self._bytes(out, values).view(np.uint16)
        if values.itemsize == 4:
            _encode_single(values, halves)
        else:
            _encode_double(values, halves)

    def decode(self, payload: Payload, out: np.ndarray) -> None:
        _decode(_halves(self._bytes(payload, out)), out)

    def add(self, payload: Payload, total: np.ndarray) -> None:
        _add(_halves(self._bytes(payload, total)), total)

    def prepare(self) -> None:
        for dtype in self.dtypes:
            nothing = np.zeros(0, dtype)
            self.encode(nothing, np.zeros(0, np.uint8))
            for payload in (b"", np.zeros(0, np.uint8)):  # compiled code tells read-only memory from other memory
                self.decode(payload, nothing)
                self.add(payload, nothing)


CODECS: dict[str, Codec] = {
    "exact": Exact({"float16": 2, "float32": 4, "float64": 8, "int32": 4, "int64": 8}),
    "float16": Float16({"float32": 2, "float64": 2}),
}


def codec_of(name: str) -> Codec:
    """Raises ConfigError for an unknown name."""
    if name not in CODECS:
        raise ConfigError(f"the codec {name!r} is unknown: use one of {', '.join(CODECS)}")
    return CODECS[name]


def _halves(given: np.ndarray) -> np.ndarray:
    """Bytes as the bits of float16."""
    halves = given.view(np.uint16)
    return halves if halves.flags.aligned else halves.copy()


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
def _to_odd_single(typing_context: Any, value: Any) -> Any:
    """The float32 of a float64, rounded to odd: cut off, and the last bit set where that lost something.

    Rounding the result to float16 then gives the float16 nearest to the float64; rounding to the nearest twice does
    not (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008).
    """
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
def _encode_single(values, halves):  # type: ignore[no-untyped-def]
    for i in range(halves.size):
        halves[i] = to_half(values[i])


@compiled
def _encode_double(values, halves):  # type: ignore[no-untyped-def]
    for i in range(halves.size):
        halves[i] = to_half(_to_odd_single(values[i]))


@compiled
def _decode(halves, out):  # type: ignore[no-untyped-def]
    for i in range(out.size):
        out[i] = from_half(halves[i])


@compiled
def _add(halves, total):  # type: ignore[no-untyped-def]
    for i in range(total.size):
        total[i] += from_half(halves[i])
