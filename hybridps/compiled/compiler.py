"""Functions compiled to machine code by numba, which caches the result if it finds a folder for it.

Compiled code that takes any number of arrays gets their `addresses`, and sees each array with `at`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numba import carray, cfunc, njit, types
from numba.extending import intrinsic
from numba.np.numpy_support import from_dtype
from numpy.typing import DTypeLike

from hybridps.compiled.cache import SharedCache
from hybridps.memory import address_of


def compiled(function: Callable[..., Any]) -> Any:
    """Compile `function`, without Python's lock and without fast arithmetic: the bits are those of the source.

    A division by zero gives Inf or NaN, as in NumPy, and raises nothing, so that loops with divisions are vectorised.

    One process of a host compiles, and the others wait for it. If neither the package nor the user's cache folder is
    writable, each process compiles anew; `NUMBA_CACHE_DIR` names another folder.
    """
    return _compiled(function)


def compiled_sums(function: Callable[..., Any]) -> Any:
    """Compile `function` like `compiled`, but allow sums in another order, so that loops that sum are vectorised."""
    return _compiled(function, fastmath={"reassoc", "nsz"})


def _compiled(function: Callable[..., Any], **options: Any) -> Any:
    try:
        dispatcher = njit(nogil=True, cache=True, error_model="numpy", **options)(function)
    except RuntimeError:
        return njit(nogil=True, error_model="numpy", **options)(function)
    dispatcher._cache = SharedCache(dispatcher._cache)
    return dispatcher


def compiled_callback(signature: str) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator that compiles a function of this C signature. C code calls it at its `address`.

    It must not raise. It may run on any thread, and needs no lock of Python.
    """

    def compile_(function: Callable[..., Any]) -> Any:
        try:
            return cfunc(signature, cache=True)(function)
        except RuntimeError:
            return cfunc(signature)(function)

    return compile_


def compiled_for(function: Any, *dtypes: DTypeLike) -> Callable[..., Any]:
    """Return a compiled function for numbers of these dtypes. Calls do not look at types, which takes 0.2 to 0.3 us."""
    entry: Callable[..., Any] = function.compile(tuple(from_dtype(np.dtype(dtype)) for dtype in dtypes))
    return entry


def addresses(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Return the addresses of the arrays (int64). The caller must hold the arrays while it uses the addresses."""
    return np.array([address_of(array) for array in arrays], np.int64)


@intrinsic  # type: ignore[misc]
def _pointer(typing_context: Any, address: Any, like: Any) -> Any:
    """Return `address` as a pointer to the dtype of `like`, an array or an element."""
    kind = types.CPointer(getattr(like, "dtype", like))

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(kind))

    return kind(types.int64, like), generate


@compiled
def array_at(address, shape, like):  # type: ignore[no-untyped-def]
    """Return the array of this shape at `address`, of the dtype of the element `like`. Nothing is copied."""
    return carray(_pointer(address, like), shape)


@compiled
def words_at(address, count):  # type: ignore[no-untyped-def]
    """Return the `count` int64 words at `address`. Nothing is copied."""
    return array_at(address, (count,), np.int64(0))


@compiled
def seen(address, start, size, like):  # type: ignore[no-untyped-def]
    """Return the `size` elements at `address` from element `start` on, of the dtype of `like`. Nothing is copied."""
    return carray(_pointer(address + start * like.itemsize, like), (size,))


@compiled
def at(address, start, block):  # type: ignore[no-untyped-def]
    """Return the array at `address` from element `start` on, of the length and dtype of `block`. Nothing is copied."""
    return seen(address, start, block.size, block)
