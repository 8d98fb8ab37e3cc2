"""MXNet's arrays over memory of ours, and asynchronous operations of its engine on them."""

from __future__ import annotations

import ctypes
import gc
import itertools
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import mxnet as mx
import numpy as np
from mxnet import autograd
from mxnet.base import _LIB, check_call
from mxnet.ndarray import NDArray
from mxnet.ndarray.sparse import BaseSparseNDArray

Done = Callable[[], None]
Started = Callable[[Done], None]

_ASYNCHRONOUS = ctypes.c_int(4)  # FnProperty::kAsync
_CPU = (ctypes.c_int * 2)(1, 0)  # Context: type and number of the device
_OnComplete = ctypes.c_void_p * 3
"""A callback, and two of its parameters: the engine, and what it knows of the operation."""

_START = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(_OnComplete), ctypes.c_void_p)
_DONE = ctypes.PYFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)

_waiting: dict[int, Started] = {}
_numbers = itertools.count(1)


@_START
def _start(_run_context: int, on_complete: ctypes._Pointer[ctypes.Array[ctypes.c_void_p]], number: int) -> None:
    callback, engine, parameter = on_complete.contents  # copied now: they live on the engine's stack
    _waiting.pop(number)(lambda: _DONE(callback or 0)(engine, parameter, None))


def operate(arrays: Sequence[NDArray], started: Started, priority: int = 0, reads: Sequence[NDArray] = ()) -> None:
    """Call `started(done)` on an engine thread when all earlier work on `arrays` (on the CPU) is done.

    `reads`: other arrays, which must be there too.

    The operation ends when `done()` is called, from any thread. Until then the engine holds back every later reader
    and writer of the arrays, and the caller goes on. `started` must return at once and not raise.
    """
    number = next(_numbers)
    _waiting[number] = started
    operation = (_start, ctypes.c_void_p(number), None)  # called with the number; nothing is deleted afterwards
    read, changed = _handles(reads), _handles(arrays)
    # Run it also when an earlier operation on the arrays has failed: the others wait for this worker, which ends when
    # it meets the error.
    options = (ctypes.byref(_ASYNCHRONOUS), priority, b"hybridps", True)
    check_call(_LIB.MXEnginePushAsyncND(*operation, ctypes.byref(_CPU), *read, *changed, *options))


def _handles(arrays: Sequence[NDArray]) -> tuple[ctypes.Array[ctypes.c_void_p], int]:
    return (ctypes.c_void_p * len(arrays))(*[array.handle.value for array in arrays]), len(arrays)


def array_over(view: np.ndarray) -> NDArray:
    """An MXNet array in the memory of `view` (which stays writable, as `from_numpy` locks only its argument)."""
    return mx.nd.from_numpy(view.view(), zero_copy=True)


def arrays_over(views: Mapping[str, np.ndarray]) -> dict[str, NDArray]:
    """Arrays over the memory of those keys that have any."""
    return {name: array_over(view) for name, view in views.items() if view.size}


def memory_of(array: NDArray) -> np.ndarray:
    """The memory of a dense array on the CPU, flat, once it may be read; valid as long as the array is kept."""
    array.wait_to_read()
    memory: Any = (ctypes.c_byte * nbytes_of(array)).from_address(address_of(array) or 0)
    return np.frombuffer(memory, np.dtype(array.dtype))


def nbytes_of(array: NDArray) -> int:
    """Size of a dense array."""
    return array.size * np.dtype(array.dtype).itemsize  # type: ignore[no-any-return]


def address_of(array: NDArray) -> int | None:
    """Where a dense array begins in memory."""
    address = ctypes.c_void_p()
    check_call(_LIB.MXNDArrayGetData(array.handle, ctypes.byref(address)))
    return address.value


class MemoryInUse:
    """Which memory the program's dense arrays use now."""

    def __init__(self) -> None:
        """Looks at all arrays that Python knows."""
        arrays = [each for each in gc.get_objects() if issubclass(type(each), NDArray) and each.stype == "default"]
        begins = sorted((address_of(array) or 0, nbytes_of(array)) for array in arrays)
        self._begins = [begin for begin, _ in begins]
        self._ends = list(itertools.accumulate((begin + nbytes for begin, nbytes in begins), max))
        """Where the last array ends of those that begin there or before."""

    def is_alone(self, array: NDArray) -> bool:
        """Whether no other array uses some of the memory of this one."""
        begin = address_of(array) or 0
        first, last = bisect_left(self._begins, begin), bisect_left(self._begins, begin + max(1, nbytes_of(array)))
        return last - first == 1 and (first == 0 or self._ends[first - 1] <= begin)


def copy_all(sources: Sequence[NDArray], targets: Sequence[NDArray]) -> None:
    """Copy source i to target i (source 0 if there is one only), where it is not the same array."""
    for number, target in enumerate(targets):
        source = sources[number if len(sources) > 1 else 0]
        if source is not target:
            source.copyto(target)


def is_alike(one: NDArray, other: NDArray) -> bool:
    """Whether these are dense arrays of the same shape and dtype, at the same place."""
    is_dense = one.stype == other.stype == "default"
    return bool(is_dense and (one.shape, one.dtype, one.context) == (other.shape, other.dtype, other.context))


def order_as_usual(array: NDArray) -> None:
    """Let MXNet's engine put the elements of a dense array into their usual order, where they lie.

    A convolution that only infers leaves its weights in an order of oneDNN's. Else this costs no pass over the array.
    """
    with autograd.pause():
        view = array.reshape((-1,))[0:1]
        mx.nd._internal._mul_scalar(view, scalar=1.0, out=view)


def same_arrays(some: Sequence[NDArray], others: Sequence[NDArray]) -> bool:
    """Whether these are the same objects."""
    return len(some) == len(others) and all(one is other for one, other in zip(some, others, strict=True))


def is_dense(array: NDArray) -> bool:
    """Whether the array is not sparse, by its class: to ask MXNet takes microseconds."""
    return not isinstance(array, BaseSparseNDArray)


def dense(array: NDArray) -> NDArray:
    """The array itself, or a dense copy of a sparse one."""
    return array if is_dense(array) else array.tostype("default")


def dtype_of(array: NDArray) -> str:
    """The dtype in which an array is summed. Sums of small integers overflow alike in any dtype that has their bits."""
    return {"uint8": "int32", "int8": "int32"}.get(name := np.dtype(array.dtype).name, name)
