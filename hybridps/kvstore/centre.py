"""The centre of a model at the servers, as MXNet arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from mxnet.ndarray import NDArray

from hybridps.kvstore.arrays import arrays_over, operate
from hybridps.step import Item


class Centre:
    """The centre of all keys of a model. `read` begins to read it into an array for each key."""

    def __init__(self, read: Callable[[], tuple[Item, Mapping[str, np.ndarray]]]) -> None:
        self._read = read
        self._arrays: dict[str, NDArray] = {}

    def take(self, name: str) -> NDArray:
        """Return the centre of a key, in an array that the engine fills.

        All keys are read at once. They are read again when a key is taken for the second time, and after `forget`.
        """
        if name not in self._arrays:
            item, views = self._read()
            self._arrays = arrays_over(views)
            operate(list(self._arrays.values()), item)
        return self._arrays.pop(name)

    def forget(self) -> None:
        """Discard what was read, as it is out of date."""
        self._arrays = {}
