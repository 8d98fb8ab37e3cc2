"""MXNet's arrays over the arenas of a model's gradients: operations of the engine fill them and wait for the sums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import mxnet as mx
from mxnet.ndarray import NDArray

from hybridps.kvstore import engine
from hybridps.kvstore.arrays import array_over, dense, dtype_of, is_gradient_of, is_overwritten, is_same_memory
from hybridps.kvstore.residence import Residence
from hybridps.step import Gradients, KeySpec

Arrays = Sequence[NDArray]


class GradientArrays:
    """The gradients of a store, as MXNet sees them. Used by the program's thread."""

    def __init__(self, gradients: Gradients) -> None:
        self._gradients = gradients
        self._slots: dict[str, list[NDArray]] = {}
        self._residences: dict[tuple[str, int], Residence] = {}

    def __contains__(self, name: str) -> bool:
        """Whether there is memory for the key."""
        return name in self._slots

    def lay_out(self, weights: Mapping[str, Arrays]) -> None:
        """Make memory for the gradients of these weights, one for each device. Waits for the other workers."""
        self._gradients.lay_out(
            {name: KeySpec(dtype_of(arrays[0]), arrays[0].shape, len(arrays)) for name, arrays in weights.items()}
        )
        for name in weights:
            self._slots[name] = [array_over(view) for view in self._gradients.views(name)]

    def sum(self, name: str, values: Arrays, priority: int, in_step: bool) -> Arrays:
        """Begin to sum a gradient over devices and workers; the arrays that will have the sum: one, or one a device."""
        slots = self._slots[name]
        if not slots[0].size:
            self._gradients.push(name, in_step)()
            return values
        summed = self._fill(name, slots, values)
        engine.push(slots, self._gradients.push(name, in_step), priority)
        return summed

    def move_in(self, weights: Mapping[str, Arrays], gradients: Mapping[str, Arrays]) -> None:
        """Let backward write gradients straight into the arenas, where that is safe. Waits for them."""
        for name, arrays in gradients.items():
            for device, gradient in enumerate(arrays[: min(len(weights[name]), len(self._slots[name]))]):
                weight, slot = weights[name][device], self._slots[name][device]
                if is_gradient_of(weight, gradient) and gradient.shape == slot.shape and gradient.dtype == slot.dtype:
                    kept = gradient.copy()
                    overwritten = is_overwritten(weight, gradient)
                    kept.copyto(gradient)
                    if overwritten:
                        self._residences[name, device] = Residence(weight, gradient, slot)
                        self._slots[name][device] = gradient

    def move_out_what_is_written_elsewhere(self) -> None:
        """A network hybridized with static shapes goes on writing to the memory that it saw first.

        What backward has not come to since the move can be told later only.
        """
        for (name, device), residence in list(self._residences.items()):
            if residence.is_settled:
                continue
            if residence.holds and residence.was_written_elsewhere():
                del self._residences[name, device]
                self._slots[name][device] = residence.undo()
            elif residence.weight._fresh_grad:
                residence.is_settled = True

    def _fill(self, name: str, slots: list[NDArray], values: Arrays) -> Arrays:
        """Copy the values to the slots, where they do not live there; the slots that will have the sum."""
        if len(values) == len(slots) and all(value.stype == "default" for value in values):
            for device, gradient in enumerate(values):
                if not self._is_resident(name, device, gradient):
                    gradient.copyto(slots[device])
            return list(slots)
        parts = [dense(value).as_in_context(values[0].context) for value in values]
        for device in range(len(slots)):
            residence = self._residences.get((name, device))
            if residence is not None and residence.holds:
                residence.leave()
            self._move_away(name, device)
        (mx.nd.add_n(*parts) if len(parts) > 1 else parts[0]).copyto(slots[0])
        for slot in slots[1:]:
            slot[:] = 0
        return slots[:1]

    def _is_resident(self, name: str, device: int, gradient: NDArray) -> bool:
        residence = self._residences.get((name, device))
        if residence is None:
            return False
        if residence.gradient is gradient and residence.holds:
            return True
        # An array that the user took before the move has what was moved, and is not written to since.
        moved = not residence.is_settled and is_same_memory(residence.other, gradient)
        if moved:
            residence.gradient.wait_to_read()
        self._move_away(name, device)
        return moved

    def _move_away(self, name: str, device: int) -> None:
        """The user's array is no longer the slot: use an array of our own over it."""
        if self._residences.pop((name, device), None) is not None:
            self._slots[name][device] = array_over(self._gradients.views(name)[device])
