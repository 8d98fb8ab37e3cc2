"""MXNet's weights that are averaged across groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mxnet.ndarray import NDArray

from hybridps.kvstore.arrays import arrays_over, copy_all, dense, operate
from hybridps.kvstore.centre import Centre
from hybridps.kvstore.sparse import all_rows
from hybridps.step import Item, Weights


class AveragedWeights:
    """MXNet's weights that are averaged together with the centre.

    `weights` gives the arrays that are trained of a key, one for each device. Operations return at once, and MXNet's
    engine lets users of the arrays wait.
    """

    def __init__(self, weights: Callable[[str], Sequence[NDArray]], shared: Weights) -> None:
        """Begin to register the weights."""
        self._weights = weights
        self.shared = shared
        self._slots = arrays_over(shared.views)
        self._centre = Centre(shared.read_centre)
        self._change(shared.join)

    def average(self, step: int) -> None:
        """Begin to average the weights of all keys with the centre."""
        self._change(lambda: self.shared.average(step))

    def centre(self, name: str) -> NDArray:
        """The centre of a key, in an array that the engine fills."""
        return self._centre.take(name)

    def forget_centre(self) -> None:
        """What was read is old."""
        self._centre.forget()

    def _change(self, begin: Callable[[], Item]) -> None:
        """Copy the weights to the slots, do what `begin` begins, and copy them back."""
        for name, slot in self._slots.items():
            dense(self._weights(name)[0]).copyto(slot)
        operate(list(self._slots.values()), begin())
        for name, slot in self._slots.items():
            for weight in self._weights(name):
                copy_all([slot if weight.stype == "default" else all_rows(slot)], [weight])
