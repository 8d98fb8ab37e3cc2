"""The state of a key in a store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mxnet.ndarray import NDArray

if TYPE_CHECKING:
    from hybridps.kvstore.averaged_weights import AveragedWeights
    from hybridps.kvstore.updates.server_updates import ServerUpdates


@dataclass
class Key:
    """The state of a key in a store."""

    stored: NDArray | None
    """The store's own value, row-sparse or dense. None: the value is with the gradients, as the last dense sum or as
    the weights that the servers made of it."""
    index: int | str
    """The key as the program and the optimizer know it."""
    outs: list[NDArray]
    """The user's weights, one for each device, if the key was broadcast."""
    at_servers: ServerUpdates | None = None
    """The servers' updates that include the key; None if the servers do not update it."""
    averaged: AveragedWeights | None = None
    """The weights that the key is averaged with: those of the model, or the key alone if it is used with `push`."""
    pushes: int = 0
    has_rows: bool = False
    """Whether a row-sparse gradient was pushed."""
    pulls: int = 0
    """The length of the current run of row-sparse pushes that were each followed by a pull into `outs`."""
    is_pulled: bool = False
    """Whether the last row-sparse push was followed by such a pull."""
    _placed: tuple[NDArray, bool] | None = None
    """The array that MXNet was last asked about, and whether it is on the CPU."""

    @property
    def is_sparse(self) -> bool:
        """Whether gradients of the key are row-sparse, or likely to be."""
        arrays = [self.stored, self.outs[0].grad if self.outs else None]
        return self.has_rows or any(array is not None and array.stype == "row_sparse" for array in arrays)

    def is_on_cpu(self, array: NDArray) -> bool:
        """Return whether an array is on the CPU. The last answer is kept, as asking MXNet takes microseconds."""
        if self._placed is None or self._placed[0] is not array:
            self._placed = array, array.context.device_type == "cpu"
        return self._placed[1]

    def pushed_and_pulled(self) -> bool:
        """At a row-sparse push: return whether to expect a pull into `outs` after it, as after the last two."""
        self.pulls = self.pulls + 1 if self.is_pulled else 0
        self.is_pulled = False
        return self.pulls >= 2

    @property
    def may_have_gradient(self) -> bool:
        """Whether MXNet may compute a gradient for the key."""
        return not self.outs or self.outs[0].grad is not None
