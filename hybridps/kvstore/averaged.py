"""MXNet's weights, averaged with the centre."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from mxnet.ndarray import NDArray

from hybridps.kvstore import engine
from hybridps.kvstore.arrays import array_over, dense
from hybridps.step import Item, Weights


class AveragedWeights:
    """Keys whose weights are averaged together.

    `weights`: the user's arrays of each key, one for each device; the lists are looked at in each operation.
    Operations return at once, and MXNet's engine lets users of the arrays wait.
    """

    def __init__(self, weights: Mapping[str, Sequence[NDArray]], shared: Weights) -> None:
        """Begin to register the weights."""
        self._weights = dict(weights)
        self._shared = shared
        self._slots = _arrays(shared.views)
        self._centre: dict[str, NDArray] = {}
        self._taken: set[str] = set()
        self._copy_in()
        self._copy_out(shared.join())

    def __contains__(self, name: str) -> bool:
        return name in self._weights

    def average(self, step: int) -> None:
        """Begin to average the weights of all keys with the centre."""
        self._copy_in()
        self._copy_out(self._shared.average(step))

    def centre(self, name: str) -> NDArray:
        """The centre of a key, in an array that the engine fills.

        The centre of all keys is read at once, and anew when a key is asked for that was taken from the last reading,
        or after `forget_centre`.
        """
        if not self._centre or name in self._taken:
            item, views = self._shared.read_centre()
            self._centre, self._taken = _arrays(views), set()
            _operate(self._centre, item)
        self._taken.add(name)
        return self._centre[name]

    def forget_centre(self) -> None:
        """What was read is old."""
        self._centre = {}

    def close(self) -> None:
        """Drop the tables. May be called from any thread, once."""
        self._shared.close()

    def _copy_in(self) -> None:
        for name, slot in self._slots.items():
            dense(self._weights[name][0]).copyto(slot)

    def _copy_out(self, item: Item) -> None:
        """Copy the weights back when the item is done."""
        _operate(self._slots, item)
        for name, slot in self._slots.items():
            for weight in self._weights[name]:
                slot.copyto(weight)


def _operate(arrays: Mapping[str, NDArray], item: Item) -> None:
    """The item arrives when the engine is done with these arrays, which wait for it then."""
    if arrays:
        engine.push(list(arrays.values()), item)
    else:
        item()


def _arrays(views: Mapping[str, np.ndarray]) -> dict[str, NDArray]:
    return {name: array_over(view) for name, view in views.items() if view.size}
