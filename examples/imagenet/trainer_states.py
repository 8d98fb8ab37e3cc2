"""The states that a Trainer's optimizer keeps for each parameter, as arrays: Trainer.save_states would write a pickle.

For a parameter, an optimizer keeps nothing, an array or a tuple. An array is named by the number of the parameter and
its place in that tuple, such as `3.0`. All devices keep the same states, so those of the first one are saved.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from mxnet import gluon, nd

SCALE = "loss_scale"
"""The scale of losses in float16: of this step and of the next, and the number of updates without overflow."""


class StatesError(Exception):
    """The states do not fit this Trainer. The message says what to do."""


def optimizer_name(trainer: gluon.Trainer) -> str:
    return type(trainer.optimizer).__name__.lower()


def arrays_of(trainer: gluon.Trainer) -> dict[str, np.ndarray]:
    """Return all states, in the optimizer's dtypes."""
    states = trainer._updaters[0].states  # MXNet offers no other access to them than its pickle
    arrays = {
        f"{index}.{place}": array.asnumpy() for index in states for place, array in enumerate(_flat(states[index]))
    }
    scaler = getattr(trainer, "_amp_loss_scaler", None)
    if scaler is not None:
        arrays[SCALE] = np.array([scaler._loss_scale, scaler._next_loss_scale, scaler._unskipped])
    return arrays


def restore(trainer: gluon.Trainer, arrays: Mapping[str, np.ndarray], updates: int) -> None:
    """Continue with the states that `arrays_of` returned after `updates` updates.

    Raises StatesError, and then changes nothing.
    """
    optimizer, restored = trainer.optimizer, []
    scale, scaler = arrays.get(SCALE, np.empty(0)), getattr(trainer, "_amp_loss_scaler", None)
    arrays = {name: array for name, array in arrays.items() if name != SCALE}
    for updater, device in zip(trainer._updaters, trainer._contexts, strict=True):
        states = {
            index: optimizer.create_state_multi_precision(index, parameter.data(device))
            for index, parameter in enumerate(trainer._params)
            if parameter.grad_req != "null"
        }
        places = {f"{index}.{place}": array for index in states for place, array in enumerate(_flat(states[index]))}
        if {name: _form(array) for name, array in places.items()} != {name: _form(arrays[name]) for name in arrays}:
            raise StatesError(
                "its states are of other shapes: use the --optimizer, --momentum and --dtype it began with"
            )
        for name, array in places.items():
            array[:] = arrays[name]
        restored.append((updater, states))
    if scaler is not None and scale.shape == (3,):
        scaler._loss_scale, scaler._next_loss_scale, scaler._unskipped = *map(float, scale[:2]), int(scale[2])
    for updater, states in restored:
        updater.states, updater.states_synced = states, dict.fromkeys(states, True)
    optimizer.begin_num_update = optimizer.num_update = updates


def _flat(state: Any) -> Iterator[nd.NDArray]:
    if isinstance(state, nd.NDArray):
        yield state
    elif state is not None:
        for each in state:
            yield from _flat(each)


def _form(array: Any) -> tuple[tuple[int, ...], np.dtype]:
    return tuple(array.shape), np.dtype(array.dtype)
