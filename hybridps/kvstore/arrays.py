"""MXNet arrays and memory of ours."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import mxnet as mx
import numpy as np
from mxnet import autograd
from mxnet.base import _LIB, check_call
from mxnet.ndarray import NDArray


def array_over(view: np.ndarray) -> NDArray:
    """An MXNet array in the memory of `view` (which stays writable, as `from_numpy` locks only its argument)."""
    return mx.nd.from_numpy(view.view(), zero_copy=True)


def memory_of(array: NDArray) -> np.ndarray:
    """The memory of a dense array on the CPU, flat, once it may be read; valid as long as the array is kept."""
    array.wait_to_read()
    dtype = np.dtype(array.dtype)
    memory = (ctypes.c_byte * (array.size * dtype.itemsize)).from_address(_address(array) or 0)
    return np.frombuffer(memory, dtype)


def copy_all(sources: Sequence[NDArray], targets: Sequence[NDArray]) -> None:
    """Copy source i to target i (source 0 if there is one only), where it is not the same array."""
    for number, target in enumerate(targets):
        source = sources[number if len(sources) > 1 else 0]
        if source is not target:
            source.copyto(target)


def same_arrays(some: Sequence[NDArray], others: Sequence[NDArray]) -> bool:
    """Whether these are the same objects."""
    return len(some) == len(others) and all(one is other for one, other in zip(some, others, strict=True))


def dense(array: NDArray) -> NDArray:
    """The array itself, or a dense copy of a sparse one."""
    return array if array.stype == "default" else array.tostype("default")


def dtype_of(array: NDArray) -> str:
    return np.dtype(array.dtype).name


def is_gradient_of(weight: NDArray, array: NDArray) -> bool:
    """Whether `array` is the dense array in CPU memory that autograd writes the gradient of `weight` to."""
    gradient = weight.grad
    if gradient is None or gradient.stype != "default" or array.stype != "default" or array.size == 0:
        return False
    return array.context.device_type == "cpu" and is_same_memory(gradient, array)


def is_same_memory(one: NDArray, other: NDArray) -> bool:
    """Whether two dense arrays begin at the same address."""
    return _address(one) == _address(other)


def is_overwritten(weight: NDArray, gradient: NDArray) -> bool:
    """Whether autograd overwrites the gradient of `weight` ('write') rather than adding to it ('add').

    MXNet does not tell, so it is tried out: waits for `gradient`, and leaves nonsense in it.
    """
    fresh = weight._fresh_grad
    gradient[:] = 1
    with autograd.record():
        nothing = weight.reshape((-1,))[0:1] * 0
    nothing.backward()
    weight._fresh_grad = fresh  # the Trainer refuses to update with what it takes for an old gradient
    return bool(gradient.reshape((-1,))[0].asscalar() == 0)


def _address(array: NDArray) -> int | None:
    address = ctypes.c_void_p()
    check_call(_LIB.MXNDArrayGetData(array.handle, ctypes.byref(address)))
    return address.value
