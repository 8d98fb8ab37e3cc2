"""The bits of half precisions, in compiled code: uint16 holds those of float16, int16 those of bfloat16."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

_WORD = ir.IntType(32)


@intrinsic  # type: ignore[misc]
def from_half(typing_context: Any, bits: Any) -> Any:
    """Return the float32 that the bits of a float16 represent."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fpext(builder.bitcast(arguments[0], ir.HalfType()), ir.FloatType())

    return types.float32(types.uint16), generate


@intrinsic  # type: ignore[misc]
def to_half(typing_context: Any, value: Any) -> Any:
    """Return the bits of the float16 nearest to a float32. Ties go to even."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(builder.fptrunc(arguments[0], ir.HalfType()), ir.IntType(16))

    return types.uint16(types.float32), generate


@intrinsic  # type: ignore[misc]
def from_brain(typing_context: Any, bits: Any) -> Any:
    """Return the float32 that the bits of a bfloat16 represent. These bits are its upper half."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(builder.shl(builder.zext(arguments[0], _WORD), _WORD(16)), ir.FloatType())

    return types.float32(types.int16), generate


@intrinsic  # type: ignore[misc]
def to_brain(typing_context: Any, value: Any) -> Any:
    """Return the bits of the bfloat16 nearest to a float32. Ties go to even; NaN stays NaN."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        bits = builder.bitcast(arguments[0], _WORD)
        odd = builder.and_(builder.lshr(bits, _WORD(16)), _WORD(1))
        rounded = builder.add(bits, builder.add(odd, _WORD(0x7FFF)))
        kept = builder.select(builder.fcmp_unordered("uno", *[arguments[0]] * 2), _WORD(0x7FC00000), rounded)
        return builder.trunc(builder.lshr(kept, _WORD(16)), ir.IntType(16))

    return types.int16(types.float32), generate


@intrinsic  # type: ignore[misc]
def rounded_to_odd(typing_context: Any, value: Any) -> Any:
    """Return a float32 unchanged, or a float64 rounded to odd: truncated, with the last bit set if inexact.

    Rounding the result to a half precision then gives the value nearest to the float64. Rounding to the nearest twice
    does not (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008).
    """
    if value == types.float32:
        return types.float32(types.float32), lambda context, builder, signature, arguments: arguments[0]

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        value = arguments[0]
        nearest = builder.fptrunc(value, ir.FloatType())
        back = builder.fpext(nearest, ir.DoubleType())
        bits = builder.bitcast(nearest, _WORD)
        positive = builder.fcmp_ordered(">", value, ir.Constant(ir.DoubleType(), 0.0))
        above, below = builder.fcmp_ordered(">", back, value), builder.fcmp_ordered("<", back, value)
        too_large = builder.select(positive, above, below)
        cut = builder.sub(bits, builder.zext(too_large, _WORD))
        lost = builder.zext(builder.or_(above, below), _WORD)
        return builder.bitcast(builder.or_(cut, lost), ir.FloatType())

    return types.float32(types.float64), generate
