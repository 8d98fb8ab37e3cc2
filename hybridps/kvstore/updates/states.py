"""States of MXNet's optimizers: as MXNet's updaters keep them, and in flat arrays, as servers do.

For a parameter, an optimizer keeps nothing, an array or a tuple. For a float16 parameter with `multi_precision` it
keeps a pair: that state, and the weights in float32, in an order of its own. `LBSGD` also holds gradients that it adds
up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import mxnet as mx
import numpy as np
from mxnet.ndarray import NDArray

from hybridps.errors import HybridPSError
from hybridps.kvstore.arrays import array_over

WEIGHTS_LAST = (mx.optimizer.SGD, mx.optimizer.NAG, mx.optimizer.LARS)
"""Optimizers whose pair has the weights second."""


def arrays_in(state: Any) -> list[NDArray]:
    """Return the arrays of a state, in order."""
    if state is None:
        return []
    return [state] if isinstance(state, NDArray) else [array for each in state for array in arrays_in(each)]


def adds_up(optimizer: Any) -> bool:
    """Return whether an optimizer adds up gradients over several updates, and keeps the sum beside its states.

    At the servers it has two more states: the sum, and an array with the number of gradients in every element.
    """
    return isinstance(optimizer, mx.optimizer.LBSGD) and optimizer.batch_scale != 1


def count_states(optimizer: Any) -> int:
    """Return the number of arrays that the servers keep for a parameter beside its weights."""
    return len(arrays_in(optimizer.create_state(0, mx.nd.zeros((2, 2))))) + 2 * adds_up(optimizer)


def laid_over(state: Any, flat: Iterator[np.ndarray]) -> Any:
    """Return the same state in other memory: each array in the first elements of one of `flat`, with its values."""
    if state is None:
        return None
    if not isinstance(state, NDArray):
        return tuple(laid_over(each, flat) for each in state)
    memory = next(flat)[: state.size]
    memory[:] = state.asnumpy().ravel()
    return array_over(memory.reshape(state.shape))


def state_of(optimizer: Any, index: int | str, kept: Sequence[np.ndarray], is_mixed: bool) -> Any:
    """Return the state of a parameter, from its weights and the arrays that servers keep of it, all in its shape.

    `is_mixed`: the parameter is float16 with `multi_precision`. A sum of gradients is put into the optimizer itself.
    """
    weights, *arrays = [np.array(array) for array in kept]
    if adds_up(optimizer):
        *arrays, summed, counts = arrays
        optimizer.cumgrads[index] = {"cum_grad": array_over(summed), "num_cums": int(counts.flat[0])}
    state = _filled(optimizer.create_state(index, array_over(weights)), iter(arrays))
    if not is_mixed:
        return state
    pair = (array_over(weights), state)
    return pair[::-1] if isinstance(optimizer, WEIGHTS_LAST) else pair


def kept_of(
    optimizer: Any, index: int | str, state: Any, weights: NDArray, is_mixed: bool, is_there: bool
) -> list[np.ndarray | None]:
    """Return what servers are to keep of a parameter: its weights (None: those there), and arrays of their shape.

    `is_there`: there is a `state`; otherwise the result is that for a first update of `weights`. Raises as `split`.
    """
    master = None
    if is_there:
        master, state = split(optimizer, index, state, weights, is_mixed)
    else:
        state = optimizer.create_state(index, weights)
    found = [_padded(array.asnumpy(), weights) for array in arrays_in(state)]
    if adds_up(optimizer):
        added = optimizer.cumgrads.get(index, {"cum_grad": 0, "num_cums": optimizer.init_updates})
        summed = added["cum_grad"]
        summed = summed.asnumpy() if isinstance(summed, NDArray) else np.zeros(weights.shape)
        found += [_padded(summed, weights), np.full(weights.shape, added["num_cums"])]
    return [None if master is None else master.asnumpy(), *found]


def split(optimizer: Any, index: int | str, state: Any, weights: NDArray, is_mixed: bool) -> tuple[NDArray | None, Any]:
    """Return the float32 weights of a float16 key (None for other keys), and the rest of its state.

    Raises HybridPSError if the state is not one that this optimizer makes for such weights.
    """
    master = None
    if is_mixed:
        if not isinstance(state, tuple) or len(state) != 2:
            raise HybridPSError(
                f"the states of key {index!r} are not those of float16 with multi_precision=True: save them with it"
            )
        first, second = state
        master, state = (second, first) if isinstance(optimizer, WEIGHTS_LAST) else (first, second)
    fresh = optimizer.create_state(index, weights)
    came, makes = ([array.shape for array in arrays_in(each)] for each in (state, fresh))
    if came != makes:
        raise HybridPSError(
            f"key {index!r} has states of the shapes {came} in the file, and {type(optimizer).__name__} as it is set "
            f"makes {makes}: set the optimizer that they were saved with, for the same network"
        )
    return master, state


def _filled(state: Any, arrays: Iterator[np.ndarray]) -> Any:
    """Return a state like this one, with the values of arrays in the shape of the parameter."""
    if state is None:
        return None
    if not isinstance(state, NDArray):
        return tuple(_filled(each, arrays) for each in state)
    values = next(arrays).ravel()[: state.size].reshape(state.shape)
    return mx.nd.array(values, dtype=values.dtype)


def _padded(array: np.ndarray, weights: NDArray) -> np.ndarray:
    """Return a state in the shape of the parameter. A smaller one fills the first elements, and zeros the others."""
    padded = np.zeros(weights.size, array.dtype)
    padded[: array.size] = array.ravel()
    return padded.reshape(weights.shape)
