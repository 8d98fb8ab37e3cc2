"""Words of memory that several threads or processes see, written and read in order, in compiled code."""

from __future__ import annotations

from typing import Any

from numba import types
from numba.extending import intrinsic


@intrinsic  # type: ignore[misc]
def load(typing_context: Any, array: Any, index: Any) -> Any:
    """`array[index]` of int64, read from memory now, and before anything that follows."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _pointer(context, builder, signature, arguments)
        return builder.load_atomic(pointer, "acquire", 8)

    return types.int64(array, index), generate


@intrinsic  # type: ignore[misc]
def store(typing_context: Any, array: Any, index: Any, value: Any) -> Any:
    """`array[index] = value` of int64, seen by others only after everything before it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _pointer(context, builder, signature, arguments)
        builder.store_atomic(arguments[2], pointer, "release", 8)
        return context.get_dummy_value()

    return types.void(array, index, types.int64), generate


def _pointer(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    array = context.make_array(signature.args[0])(context, builder, arguments[0])
    return builder.gep(array.data, [arguments[1]])
