"""Arrays of the program that live in memory of ours, and which arrays may."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from weakref import WeakSet

from mxnet import autograd
from mxnet.executor import Executor
from mxnet.gluon import HybridBlock
from mxnet.ndarray import CachedOp, NDArray

from hybridps.kvstore.arrays import MemoryInUse, is_alike


class MovedArray:
    """An array of the program that has swapped its memory with an array of ours, `other`."""

    def __init__(self, array: NDArray, other: NDArray) -> None:
        """Give the array the memory of `other`, with what is in the array."""
        array.copyto(other)
        self.array, self.other = array, other
        self._swap()
        _all_moved.add(self)

    @property
    def holds(self) -> bool:
        """Whether the array is still where it was put: another store may have moved it on."""
        return bool(self.array.handle.value == self._handle)

    def _swap(self) -> None:
        self.other.handle, self.array.handle = self.array.handle, self.other.handle
        self._handle = self.array.handle.value


_all_moved: WeakSet[MovedArray] = WeakSet()
"""Of all stores of the process."""


class MovedWeight(MovedArray):
    """A weight of the program that lives in the memory of a slot. MXNet orders who uses the one and the other."""

    def __init__(self, weight: NDArray, slot: NDArray) -> None:
        gradient, fresh = weight.grad, weight._fresh_grad
        super().__init__(weight, slot.detach())
        if gradient is not None:
            mark(weight, gradient, fresh)


class Movable:
    """The arrays whose memory nothing else uses now, and which were not moved, by this store or another one."""

    def __init__(self) -> None:
        """Looks at all arrays that Python knows."""
        self._in_use = MemoryInUse()

    def __contains__(self, array: NDArray) -> bool:
        is_elsewhere = any(moved.array is array and moved.holds for moved in _all_moved)
        return not is_elsewhere and self._in_use.is_alone(array)


def move_weights(weights: Mapping[str, NDArray], slots: Mapping[str, NDArray]) -> dict[str, MovedWeight]:
    """Move those weights to the memory of their slots that can safely be there. Waits for their gradients.

    A weight stays where it is if something may keep its old memory: a view, an executor, or a network that is
    hybridized with static shapes.
    """
    if not weights or _networks_keep_memory():
        return {}
    movable, bound = Movable(), _bound()
    return {
        name: MovedWeight(weight, slots[name])
        for name, weight in weights.items()
        if id(weight) not in bound and is_alike(weight, slots[name]) and weight in movable and _can_be_marked(weight)
    }


def mark(weight: NDArray, gradient: NDArray, fresh: bool) -> None:
    """Let autograd overwrite `gradient` with the gradient of `weight`.

    `fresh`: whether it has done so since the last update. The Trainer refuses to update with an old gradient.
    """
    autograd.mark_variables([weight], [gradient], "write")
    weight._fresh_grad = fresh


def is_overwritten(weight: NDArray, gradient: NDArray) -> bool:
    """Whether autograd overwrites the gradient of `weight` ('write') rather than adding to it ('add').

    MXNet does not tell, so it is tried out. Waits for `gradient`.
    """
    fresh, kept = weight._fresh_grad, gradient.copy()
    gradient[:] = 1
    with autograd.record():
        nothing = weight.reshape((-1,))[0:1] * 0
    nothing.backward()
    weight._fresh_grad = fresh
    overwritten = bool(gradient.reshape((-1,))[0].asscalar() == 0)
    kept.copyto(gradient)
    return overwritten


def _can_be_marked(weight: NDArray) -> bool:
    """Whether `mark` does what the program has done, if it has marked the weight."""
    gradient = weight.grad
    return gradient is None or (gradient.stype == "default" and is_overwritten(weight, gradient))


def _bound() -> set[int]:
    """The identities of arrays that executors read from the memory that these had when they were bound."""
    executors = [each for each in gc.get_objects() if issubclass(type(each), Executor)]
    return {id(array) for each in executors for array in (*each.arg_arrays, *each.aux_arrays)}


def _networks_keep_memory() -> bool:
    """Whether a network may keep to the memory that its weights had first, or to what it made of them."""
    objects = gc.get_objects()
    blocks = [each for each in objects if issubclass(type(each), HybridBlock)]
    of_blocks = {id(getattr(each, "_cached_op", None)) for each in blocks}
    if any(issubclass(type(each), CachedOp) and id(each) not in of_blocks for each in objects):
        return True
    return any(each._backend or dict(each._flags).get("static_shape") for each in blocks if hasattr(each, "_flags"))
