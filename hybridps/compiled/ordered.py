"""Words of memory that several threads or processes see, written and read in order by compiled code."""

from __future__ import annotations

from typing import Any

from numba import types
from numba.extending import intrinsic


@intrinsic  # type: ignore[misc]
def load(typing_context: Any, array: Any, index: Any) -> Any:
    """Read `array[index]`, an int64, from memory, before anything that follows (acquire)."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _pointer(context, builder, signature, arguments)
        return builder.load_atomic(pointer, "acquire", 8)

    return types.int64(array, index), generate


@intrinsic  # type: ignore[misc]
def store(typing_context: Any, array: Any, index: Any, value: Any) -> Any:
    """Write `array[index] = value`, an int64. Others see it only after everything before it (release)."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _pointer(context, builder, signature, arguments)
        builder.store_atomic(arguments[2], pointer, "release", 8)
        return context.get_dummy_value()

    return types.void(array, index, types.int64), generate


@intrinsic  # type: ignore[misc]
def exchange(typing_context: Any, array: Any, index: Any, value: Any) -> Any:
    """Write `array[index] = value`, an int64, and return what was there, in one operation (sequentially consistent)."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _pointer(context, builder, signature, arguments)
        return builder.atomic_rmw("xchg", pointer, arguments[2], "seq_cst")

    return types.int64(array, index, types.int64), generate


@intrinsic  # type: ignore[misc]
def replace(typing_context: Any, array: Any, index: Any, expected: Any, value: Any) -> Any:
    """Write `array[index] = value` if `expected` is there, and return whether it was: `exchange` with a condition."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _pointer(context, builder, signature, arguments)
        found = builder.cmpxchg(pointer, arguments[2], arguments[3], "seq_cst", "seq_cst")
        return builder.extract_value(found, 1)

    return types.boolean(array, index, types.int64, types.int64), generate


@intrinsic  # type: ignore[misc]
def fence(typing_context: Any) -> Any:
    """Make earlier writes visible to other threads before anything that follows."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


def _pointer(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    array = context.make_array(signature.args[0])(context, builder, arguments[0])
    return builder.gep(array.data, [arguments[1]])
