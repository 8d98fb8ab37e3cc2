"""The barrier of a node, compiled: it must read and write memory in order, and wait without the interpreter lock."""

from __future__ import annotations

from typing import Any

from numba import types
from numba.extending import intrinsic

from hybridps.compiled import compiled

_yield = types.ExternalFunction("sched_yield", types.int32())


@intrinsic  # type: ignore[misc]
def _load(typing_context: Any, array: Any, index: Any) -> Any:
    """`array[index]` of int64, read from memory now, and before anything that follows."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _pointer(context, builder, signature, arguments)
        return builder.load_atomic(pointer, "acquire", 8)

    return types.int64(array, index), generate


@intrinsic  # type: ignore[misc]
def _store(typing_context: Any, array: Any, index: Any, value: Any) -> Any:
    """`array[index] = value` of int64, seen by others only after everything before it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _pointer(context, builder, signature, arguments)
        builder.store_atomic(arguments[2], pointer, "release", 8)
        return context.get_dummy_value()

    return types.void(array, index, types.int64), generate


def _pointer(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    array = context.make_array(signature.args[0])(context, builder, arguments[0])
    return builder.gep(array.data, [arguments[1]])


@compiled
def wait_for(counters, stride, mine, target, tries, first, last):  # type: ignore[no-untyped-def]
    """Count myself in, and wait until the counters of ranks `first:last` are `target`; the first missing rank, or -1.

    `counters`: int64, rank r's at `r * stride`. Gives up after `tries` looks, without the lock.
    """
    _store(counters, mine * stride, target)
    missing = -1
    for look in range(tries):
        missing = -1
        for rank in range(first, last):
            if _load(counters, rank * stride) < target:
                missing = rank
                break
        if missing < 0:
            return missing
        if look > 200:
            _yield()
    return missing


@compiled
def wait_for_all(counters, stride, mine, target, tries):  # type: ignore[no-untyped-def]
    """The same, for the counters of all ranks."""
    return wait_for(counters, stride, mine, target, tries, 0, len(counters) // stride)
