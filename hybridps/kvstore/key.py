"""What a store knows of a key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mxnet.ndarray import NDArray

if TYPE_CHECKING:
    from hybridps.kvstore.averaged_weights import AveragedWeights
    from hybridps.kvstore.updates.server_updates import ServerUpdates


@dataclass
class Key:
    """What the store knows of a key."""

    stored: NDArray | None
    """The store's own value, on the CPU, row-sparse or dense. None: it lies with the gradients, as the dense sum last
    pushed or as what the servers made of it."""
    index: int | str
    """What the program calls it, and the optimizer."""
    outs: list[NDArray]
    """The user's weights, one for each device, if the key was broadcast."""
    at_servers: ServerUpdates | None = None
    """Where the servers update the key, if they do."""
    averaged: AveragedWeights | None = None
    """What the key is averaged with: the others of the model, or, if it is used with `push`, nothing else."""
    pushes: int = 0
    has_rows: bool = False
    """Whether a row-sparse gradient was pushed."""
    pulls: int = 0
    """How many of the last row-sparse pushes were all followed by a pull into `outs`."""
    is_pulled: bool = False
    """Whether the last one was."""
    _placed: tuple[NDArray, bool] | None = None
    """An array, and whether it is on the CPU."""

    @property
    def is_sparse(self) -> bool:
        """Whether gradients of the key are row-sparse, or likely to be."""
        arrays = [self.stored, self.outs[0].grad if self.outs else None]
        return self.has_rows or any(array is not None and array.stype == "row_sparse" for array in arrays)

    def is_on_cpu(self, array: NDArray) -> bool:
        """Whether an array is on the CPU. MXNet is asked once, as that takes microseconds."""
        if self._placed is None or self._placed[0] is not array:
            self._placed = array, array.context.device_type == "cpu"
        return self._placed[1]

    def pushed_and_pulled(self) -> bool:
        """At a row-sparse push: whether it will be followed by a pull into `outs`, as the last two were."""
        self.pulls = self.pulls + 1 if self.is_pulled else 0
        self.is_pulled = False
        return self.pulls >= 2

    @property
    def may_have_gradient(self) -> bool:
        """False for a parameter that MXNet computes no gradient for."""
        return not self.outs or self.outs[0].grad is not None
