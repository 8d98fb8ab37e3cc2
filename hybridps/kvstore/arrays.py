"""MXNet arrays in memory of hybridps, and asynchronous operations of MXNet's engine on them."""

from __future__ import annotations

import ctypes
import gc
import itertools
import sys
import traceback
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import mxnet as mx
import numpy as np
from mxnet import autograd
from mxnet.base import _LIB, check_call
from mxnet.ndarray import NDArray
from mxnet.ndarray.sparse import BaseSparseNDArray

from hybridps.compiled import compiled_callback
from hybridps.compiled.arrivals import arrive
from hybridps.step import Item

Object = TypeVar("Object")

_ASYNCHRONOUS = ctypes.byref(ctypes.c_int(4))  # FnProperty::kAsync
_CPU = ctypes.byref((ctypes.c_int * 2)(1, 0))  # Context: type and number of the device


@compiled_callback("void(voidptr, CPointer(int64), int64)")
def _start(_run_context, on_complete, ticket):  # type: ignore[no-untyped-def]
    """Begin an operation, on a thread of the engine. `on_complete` lives on its stack: a callback, two parameters."""
    arrive(ticket, on_complete[0], on_complete[1], on_complete[2])


_START = ctypes.c_void_p(_start.address)


def operate(arrays: Sequence[NDArray], item: Item, priority: int = 0, reads: Sequence[NDArray] = ()) -> None:
    """Let `item` arrive once all earlier work on `arrays` (on the CPU) is done.

    `reads`: other arrays that must be ready too.

    Return at once. The operation ends when the item is done; until then the engine holds back all later readers and
    writers of `arrays`.
    """
    push_operation(arrays, _START, item.take_ticket(), priority, reads)


def push_operation(
    arrays: Sequence[NDArray], start: Any, number: int, priority: int = 0, reads: Sequence[NDArray] = ()
) -> None:
    """Have MXNet's engine call the C function `start(run context, on_complete, number)` as an operation on arrays.

    The call may return before the operation ends. `on_complete` is a callback and its first two parameters.
    """
    read, changed = _handles(reads) if reads else (None, 0), _handles(arrays)
    # Run the operation even if an earlier one on the arrays has failed: the other workers wait for this worker, which
    # ends when it meets the error.
    options = (_ASYNCHRONOUS, priority, b"hybridps", True)
    operation = (start, ctypes.c_void_p(number), None)  # no deleter
    check_call(_LIB.MXEnginePushAsyncND(*operation, _CPU, *read, *changed, *options))


def _handles(arrays: Sequence[NDArray]) -> tuple[Any, int]:
    """Return the handles of arrays as MXNet takes them, and how many there are. Most often that is one."""
    if len(arrays) == 1:
        return ctypes.byref(arrays[0].handle), 1
    return (ctypes.c_void_p * len(arrays))(*[array.handle.value for array in arrays]), len(arrays)


def array_over(view: np.ndarray) -> NDArray:
    """Return an MXNet array in the memory of `view`, which stays writable: `from_numpy` locks only its argument."""
    return mx.nd.from_numpy(view.view(), zero_copy=True)


def arrays_over(views: Mapping[str, np.ndarray]) -> dict[str, NDArray]:
    """Return an array in the memory of each view that has elements."""
    return {name: array_over(view) for name, view in views.items() if view.size}


def memory_of(array: NDArray) -> np.ndarray:
    """Return the memory of a dense CPU array, flat. Waits until it can be read; valid while the array is kept."""
    memory: Any = (ctypes.c_byte * nbytes_of(array)).from_address(address_of(array) or 0)
    return np.frombuffer(memory, np.dtype(array.dtype))


def nbytes_of(array: NDArray) -> int:
    """Return the size of a dense array in bytes."""
    return array.size * np.dtype(array.dtype).itemsize  # type: ignore[no-any-return]


def address_of(array: NDArray) -> int | None:
    """Return the address at which a dense array begins. Waits until it can be read.

    MXNet allocates an array's memory when it is first computed, or here. If both happened at once, the array would lose
    its values.
    """
    array.wait_to_read()
    address = ctypes.c_void_p()
    check_call(_LIB.MXNDArrayGetData(array.handle, ctypes.byref(address)))
    return address.value


def instances(kind: type[Object]) -> list[Object]:
    """Return all objects of a class, or of one derived from it, that Python's garbage collector tracks.

    Objects whose `__del__` runs, or has run, are left out: their memory is being freed.

    The list of all tracked objects is made, read and emptied within one call that runs no Python code, so no other
    thread runs meanwhile. It may have a tuple that another thread is still filling, as in `tuple(x for x in y)`.
    CPython ends that with a SystemError if it meets a second reference to the tuple.
    """
    found, _ = next(_instances(kind))
    # In this order: what is no longer being deleted has been deleted.
    deleted = {id(each) for each in _being_deleted()}
    return [each for each in found if id(each) not in deleted and not gc.is_finalized(each)]


def _being_deleted() -> Iterator[object]:
    """Yield the objects whose `__del__` runs now, on any thread."""
    for innermost in sys._current_frames().values():
        for frame, _ in traceback.walk_stack(innermost):
            if frame.f_code.co_name == "__del__" and frame.f_code.co_varnames:
                yield frame.f_locals.get(frame.f_code.co_varnames[0])


def _instances(kind: type[Object]) -> Iterator[tuple[list[Object], None]]:
    objects, of_kinds, to_empty = itertools.tee(iter(gc.get_objects, None), 3)
    kinds = map(partial(map, type), of_kinds)
    chosen = map(partial(map, issubclass), kinds, itertools.repeat(itertools.repeat(kind)))
    return zip(map(list, map(itertools.compress, objects, chosen)), map(list.clear, to_empty), strict=False)


def all_arrays() -> list[NDArray]:
    """Return all arrays that Python's garbage collector tracks."""
    # An array without a handle is being made, on this thread or another, and uses no memory yet.
    return [each for each in instances(NDArray) if hasattr(each, "handle")]


class MemoryInUse:
    """The memory that the program's dense arrays use now."""

    def __init__(self) -> None:
        """Inspect the memory of all arrays."""
        arrays = [each for each in all_arrays() if each.stype == "default"]
        begins = sorted((address_of(array) or 0, nbytes_of(array)) for array in arrays)
        self._begins = [begin for begin, _ in begins]
        self._ends = list(itertools.accumulate((begin + nbytes for begin, nbytes in begins), max))
        """For each array, the largest end among the arrays that begin at or before it."""

    def is_alone(self, array: NDArray) -> bool:
        """Return whether no other array uses any of this array's memory."""
        begin = address_of(array) or 0
        first, last = bisect_left(self._begins, begin), bisect_left(self._begins, begin + max(1, nbytes_of(array)))
        return last - first == 1 and (first == 0 or self._ends[first - 1] <= begin)


def copy_all(sources: Sequence[NDArray], targets: Sequence[NDArray]) -> None:
    """Copy source i to target i, or the only source to all targets. A target that is its source is left out."""
    for number, target in enumerate(targets):
        source = sources[number if len(sources) > 1 else 0]
        if source is not target:
            source.copyto(target)


def is_alike(one: NDArray, other: NDArray) -> bool:
    """Return whether both are dense arrays of the same shape and dtype in the same context."""
    is_dense = one.stype == other.stype == "default"
    return bool(is_dense and (one.shape, one.dtype, one.context) == (other.shape, other.dtype, other.context))


def order_as_usual(array: NDArray) -> None:
    """Have MXNet's engine restore the usual order of a dense array's elements, in place.

    A convolution that only infers leaves its weights in an order of oneDNN. Otherwise this makes no pass over the
    array.
    """
    with autograd.pause():
        view = array.reshape((-1,))[0:1]
        mx.nd._internal._mul_scalar(view, scalar=1.0, out=view)


def same_arrays(some: Sequence[NDArray], others: Sequence[NDArray]) -> bool:
    """Return whether both hold the same objects, in order."""
    return len(some) == len(others) and all(one is other for one, other in zip(some, others, strict=True))


def is_dense(array: NDArray) -> bool:
    """Return whether an array is not sparse, judged by its class: asking MXNet takes microseconds."""
    return not isinstance(array, BaseSparseNDArray)


def dense(array: NDArray) -> NDArray:
    """Return the array itself, or a dense copy of a sparse one."""
    return array if is_dense(array) else array.tostype("default")


def dtype_of(array: NDArray) -> str:
    """Return the dtype in which an array is summed. Small integers are summed in int32, whose low bits are the same."""
    return {"uint8": "int32", "int8": "int32"}.get(name := np.dtype(array.dtype).name, name)
