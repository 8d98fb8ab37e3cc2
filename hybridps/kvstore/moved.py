"""Arrays of the program that were moved to memory of hybridps, and which arrays may be moved."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from weakref import WeakSet

import mxnet as mx
from mxnet import autograd
from mxnet.executor import Executor
from mxnet.gluon import HybridBlock
from mxnet.ndarray import CachedOp, NDArray

from hybridps.kvstore.arrays import MemoryInUse, all_arrays, instances, is_alike


class MovedArray:
    """An array of the program that has swapped its memory with `other`, an array of hybridps."""

    def __init__(self, array: NDArray, other: NDArray) -> None:
        """Give `array` the memory of `other`, and keep its values."""
        array.copyto(other)
        self.array, self.other = array, other
        self._swap()
        _all_moved.add(self)

    @property
    def holds(self) -> bool:
        """Whether the array is still in that memory, neither moved back nor moved again by another store."""
        return bool(self.array.handle.value == self._handle)

    def _swap(self) -> None:
        self.other.handle, self.array.handle = self.array.handle, self.other.handle
        self._handle = self.array.handle.value


_all_moved: WeakSet[MovedArray] = WeakSet()
"""The moved arrays of all stores in the process."""


class MovedWeight(MovedArray):
    """A weight of the program in the memory of a slot. MXNet orders the operations on the weight and on the slot."""

    def __init__(self, weight: NDArray, slot: NDArray) -> None:
        gradient, fresh = weight.grad, weight._fresh_grad
        super().__init__(weight, slot.detach())
        if gradient is not None:
            mark(weight, gradient, fresh)


class Movable:
    """The arrays that may be moved: nothing else uses their memory now, and no store has moved them."""

    def __init__(self) -> None:
        """Inspect all arrays that Python's garbage collector tracks."""
        self._in_use = MemoryInUse()

    def __contains__(self, array: NDArray) -> bool:
        is_elsewhere = any(moved.array is array and moved.holds for moved in _all_moved)
        return not is_elsewhere and self._in_use.is_alone(array)


def move_weights(weights: Mapping[str, NDArray], slots: Mapping[str, NDArray]) -> dict[str, MovedWeight]:
    """Move weights to the memory of their slots, where that is safe. Waits for their gradients.

    A weight stays where it is if something may keep its old memory: a view, an executor, a graph that autograd has
    recorded, or a network that is hybridized with static shapes.
    """
    if not weights or networks_keep_memory():
        return {}
    movable, kept = Movable(), _bound() | in_graphs(weights.values())
    return {
        name: MovedWeight(weight, slots[name])
        for name, weight in weights.items()
        if id(weight) not in kept and is_alike(weight, slots[name]) and weight in movable and _can_be_marked(weight)
    }


def in_graphs(weights: Iterable[NDArray]) -> set[int]:
    """Return the identities of the weights in graphs that the program may still differentiate.

    Such a graph reads the memory that the weights had when autograd recorded it, and writes to that of their gradients.
    """
    variables = {id(weight): _graph_of(weight) for weight in weights}
    graphs = [_graph_of(array) for array in all_arrays() if id(array) not in variables]
    graphs = [graph for graph in graphs if graph is not None]
    reached = set(mx.sym.Group(graphs).list_arguments()) if graphs else set()
    names = {each: graph.list_arguments() for each, graph in variables.items() if graph is not None}
    return {each for each, of_weight in names.items() if not reached.isdisjoint(of_weight)}


def _graph_of(array: NDArray) -> mx.sym.Symbol | None:
    """Return the graph that leads to an array; None if autograd has recorded none, or has freed it after backward."""
    try:
        return autograd.get_symbol(array)
    except mx.MXNetError:
        return None


def mark(weight: NDArray, gradient: NDArray, fresh: bool, overwrites: bool = True) -> None:
    """Have autograd overwrite `gradient` with the gradient of `weight`, or add to it.

    `fresh`: whether it has done so since the last update. The Trainer refuses to update with an old gradient.
    """
    autograd.mark_variables([weight], [gradient], "write" if overwrites else "add")
    weight._fresh_grad = fresh


def is_overwritten(weight: NDArray, gradient: NDArray) -> bool:
    """Return whether autograd overwrites the gradient of `weight` ('write') rather than adding to it ('add').

    MXNet does not report this, so it is tried out. Waits for `gradient`.
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
    """Return whether `mark` repeats what the program did, if the program has marked the weight."""
    gradient = weight.grad
    return gradient is None or (gradient.stype == "default" and is_overwritten(weight, gradient))


def _bound() -> set[int]:
    """Return the identities of arrays that executors read from the memory that the arrays had when they were bound."""
    return {id(array) for each in instances(Executor) for array in (*each.arg_arrays, *each.aux_arrays)}


def networks_keep_memory() -> bool:
    """Return whether a network may keep the first memory of its arrays, or results that it computed from weights."""
    blocks = instances(HybridBlock)
    of_blocks = {id(getattr(each, "_cached_op", None)) for each in blocks}
    if any(id(each) not in of_blocks for each in instances(CachedOp)):
        return True
    return any(each._backend or dict(each._flags).get("static_shape") for each in blocks if hasattr(each, "_flags"))
