"""Copies of payloads past the caches, so that the memory to be written is not read first."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from hybridps.compiled.compiler import addresses, at, compiled
from hybridps.compiled.ordered import fence

LEAST_BYTES = 16 << 20
"""A smaller buffer is still in a cache when it is read. Its reader would lose what the writer gains."""

_LINE = 64
"""The number of bytes that are written at once, to an address that is a multiple of it."""


@intrinsic  # type: ignore[misc]
def _copy_line(typing_context: Any, target: Any, source: Any) -> Any:
    """Copy the line at address `source` to address `target`, past the caches."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        line = ir.VectorType(ir.IntType(64), _LINE // 8).as_pointer()
        to, of = (builder.inttoptr(address, line) for address in arguments)
        stored = builder.store(builder.load(of, align=1), to, align=_LINE)
        stored.set_metadata("nontemporal", builder.module.add_metadata([ir.IntType(32)(1)]))
        return context.get_dummy_value()

    return types.void(types.uintp, types.uintp), generate


@compiled
def stream_(target, address):  # type: ignore[no-untyped-def]
    """Copy the bytes at `address` to the bytes of `target`. The compiled caller must end with a `fence`."""
    # The source is given by address, so that writable and read-only memory have the same type here.
    source, to = at(address, 0, target), target.ctypes.data
    begin = min(-to % _LINE, target.size)
    end = begin + (target.size - begin) // _LINE * _LINE
    for i in range(begin):
        target[i] = source[i]
    for i in range(begin, end, _LINE):
        _copy_line(types.uintp(to + i), types.uintp(address + i))
    for i in range(end, target.size):
        target[i] = source[i]


@compiled
def _copy_lines_(target, address):  # type: ignore[no-untyped-def]
    stream_(target, address)
    fence()


def copy_(target: np.ndarray, source: np.ndarray, whole_bytes: int) -> None:
    """Copy contiguous `source` to contiguous `target`, of the same dtype and length. They must not overlap.

    `target` is a part of a buffer of `whole_bytes`, which is read after all of it is written.
    """
    if whole_bytes < LEAST_BYTES:
        np.copyto(target, source)
    else:
        _copy_lines_(target.view(np.uint8), addresses([source])[0])


def prepare(whole_bytes: int) -> None:
    """Compile or load what `copy_` needs for a buffer of `whole_bytes`, before the first answer arrives."""
    if whole_bytes >= LEAST_BYTES:
        zeros = np.zeros(_LINE, np.uint8)
        _copy_lines_(zeros, addresses([zeros.copy()])[0])
