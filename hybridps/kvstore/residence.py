"""A gradient array of the user whose memory is in an arena of ours, so that backward writes there."""

from __future__ import annotations

from mxnet import autograd
from mxnet.ndarray import NDArray

UNTOUCHED = -60000.0
"""Written where autograd should write no more; exact in every dtype, and no likely gradient."""


class Residence:
    """A gradient array that was moved into the arena. `other` has its old memory."""

    def __init__(self, weight: NDArray, gradient: NDArray, slot: NDArray) -> None:
        """Swap the memory of `gradient` and `slot`, and let autograd write to the arena."""
        gradient.copyto(slot)
        self.weight, self.gradient, self.other = weight, gradient, slot
        self.is_settled = False
        """Whether backward has written to the arena."""
        self._swap()
        self.other[:] = UNTOUCHED

    @property
    def holds(self) -> bool:
        """Whether the array is still where it was put: another store may have moved it on."""
        return bool(self.gradient.handle.value == self._handle)

    def was_written_elsewhere(self) -> bool:
        """Whether backward wrote to the old memory all the same. Waits for backward."""
        return bool(self.other.reshape((-1,))[0].asscalar() != UNTOUCHED)

    def leave(self) -> None:
        """Give the user's array memory of its own, with what is in it. Waits for that."""
        self.other = self.gradient.copy()
        self.other.wait_to_read()
        self._swap()

    def undo(self) -> NDArray:
        """Give the user's array its old memory again; returns an array over the slot."""
        self._swap()
        return self.other

    def _swap(self) -> None:
        fresh = self.weight._fresh_grad
        self.other.handle, self.gradient.handle = self.gradient.handle, self.other.handle
        autograd.mark_variables([self.weight], [self.gradient], "write")
        self.weight._fresh_grad = fresh  # the Trainer refuses to update with what it takes for an old gradient
        self._handle = self.gradient.handle.value
