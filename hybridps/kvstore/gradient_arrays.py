"""MXNet arrays over the arenas of a model's gradients. Engine operations fill them and wait for the sums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import mxnet as mx
from mxnet.ndarray import NDArray

from hybridps.algorithms import AnyRule
from hybridps.kvstore.arrays import address_of, array_over, dtype_of, operate
from hybridps.kvstore.moved import Movable, MovedArray, in_graphs, is_overwritten, mark, networks_keep_memory
from hybridps.kvstore.program_steps import ProgramSteps
from hybridps.step import Gradients, KeySpec

Arrays = Sequence[NDArray]

UNTOUCHED = -60000.0
"""The value written where autograd should no longer write: exact in every float dtype, and an unlikely gradient."""


class MovedGradient(MovedArray):
    """A gradient array of the program that was moved into the arena, so that backward writes there."""

    def __init__(self, weight: NDArray, gradient: NDArray, slot: NDArray) -> None:
        """Swap the memory of `gradient` and `slot`, and let autograd write to the arena."""
        super().__init__(gradient, slot)
        self.weight = weight
        self.is_settled = False
        """Whether backward has written to the arena."""
        mark(weight, gradient, weight._fresh_grad)
        self.other[:] = UNTOUCHED

    def was_written_elsewhere(self) -> bool:
        """Return whether backward still wrote to the old memory. Waits for backward."""
        return bool(self.other.reshape((-1,))[0].asscalar() != UNTOUCHED)

    def leave(self) -> NDArray:
        """Give the user's array memory of its own, with its values. Return an array over the slot."""
        self.other = self.array.copy()
        return self.undo()

    def undo(self) -> NDArray:
        """Give the user's array its old memory back. Return an array over the slot."""
        now = self.weight.grad  # a different one if the program has changed `grad_req`, or None
        is_marked = now is not None and address_of(now) == address_of(self.array)
        overwrites = is_marked and is_overwritten(self.weight, self.array)  # the program may have marked it again
        self._swap()
        self._handle = None
        if is_marked:
            mark(self.weight, self.array, self.weight._fresh_grad, overwrites)
        return self.other


class GradientArrays:
    """The gradients of a store as MXNet arrays. Used by the program's thread."""

    def __init__(self, gradients: Gradients) -> None:
        self._gradients = gradients
        self._slots: dict[str, list[NDArray]] = {}
        self._answers: dict[str, NDArray] = {}
        """The new weights of keys whose gradients a sum leaves unchanged."""
        self._moved: dict[tuple[str, int], MovedGradient] = {}
        self._empty: set[str] = set()
        """Keys without elements."""

    def lay_out(self, weights: Mapping[str, Arrays]) -> None:
        """Allocate memory for the gradients of these weights, one array for each device. Waits for other workers."""
        self._gradients.lay_out(
            {name: KeySpec(dtype_of(arrays[0]), arrays[0].shape, len(arrays)) for name, arrays in weights.items()}
        )
        for name in weights:
            views = self._gradients.views(name)
            self._slots[name] = [array_over(view) for view in views]
            if not views[0].size:
                self._empty.add(name)
            answer = self._gradients.weights(name)
            if answer is not None:
                self._answers[name] = array_over(answer)

    def slot(self, name: str) -> NDArray:
        """Return the array with a key's last sum, or with the weights that the servers made of it."""
        return self._answers[name] if name in self._answers else self._slots[name][0]

    def moved(self, name: str) -> MovedGradient | None:
        """Return the gradient of a key if it was moved to the arena, where its sum replaces it."""
        return None if name in self._answers else self._moved.get((name, 0))

    def stay(self, name: str) -> bool:
        """Return whether a sum leaves the gradients of a key unchanged."""
        return name in self._answers

    def sum(
        self,
        name: str,
        values: Arrays,
        priority: int,
        in_step: bool,
        rule: AnyRule | None = None,
        in_place: bool = False,
    ) -> Arrays:
        """Begin to sum a gradient over devices and workers. Return the arrays for the sum: one, or one for each device.

        If the servers update by `rule`, the arrays receive the new weights. `in_place`: the sum may replace `values`.
        """
        slots = self._slots[name]
        if name in self._empty:
            self._gradients.push(name, in_step, rule)()
            return values
        summed, item = self._fill(name, slots, values, in_place), self._gradients.push(name, in_step, rule)
        if name not in self._answers:
            operate(slots, item, priority)
            return summed
        operate([self._answers[name]], item, priority, reads=slots)
        return [self._answers[name]]

    def move_in(self, weights: Mapping[str, Arrays], gradients: Mapping[str, Arrays]) -> None:
        """Let backward write gradients directly into the arenas, where that is safe. Waits for the gradients.

        An array stays where it is if another store has moved it, or if something would keep its old memory: a view, a
        graph that autograd has recorded, or a network that is hybridized with static shapes.
        """
        if not gradients or networks_keep_memory():
            return
        movable, kept = Movable(), in_graphs(weight for name in gradients for weight in weights[name])
        for name, arrays in gradients.items():
            slots = self._slots[name]
            for device, (weight, gradient) in enumerate(zip(weights[name], arrays[: len(slots)], strict=False)):
                is_own = gradient in movable and _is_gradient_of(weight, gradient, slots[device])
                if is_own and id(weight) not in kept and is_overwritten(weight, gradient):
                    self._moved[name, device] = MovedGradient(weight, gradient, slots[device])
                    slots[device] = gradient

    def move_out_what_is_written_elsewhere(self) -> None:
        """Move out the gradients that backward still writes to their old memory.

        A network that is hybridized with static shapes after the move may still write to the memory that it saw first.
        Gradients that backward has not written since the move are checked again later.
        """
        for (name, device), moved in [each for each in self._moved.items() if not each[1].is_settled]:
            if moved.holds and moved.was_written_elsewhere():
                self._move_out(name, device, moved.undo())
            elif moved.weight._fresh_grad:
                moved.is_settled = True

    def _fill(self, name: str, slots: list[NDArray], values: Arrays, in_place: bool) -> Arrays:
        """Copy the values to the slots, unless they are there already. Return the slots for the sum."""
        if len(values) == len(slots):
            for device, gradient in enumerate(values):
                if not self._lives_here(name, device, gradient):
                    gradient.copyto(slots[device])
                elif not (in_place or self.stay(name)):
                    self._leave(name, device)
            return list(slots)
        parts = [value.as_in_context(values[0].context) for value in values]
        for device in range(len(slots)):
            self._leave(name, device)
        (mx.nd.add_n(*parts) if len(parts) > 1 else parts[0]).copyto(slots[0])
        for slot in slots[1:]:
            slot[:] = 0
        return slots[:1]

    def _lives_here(self, name: str, device: int, gradient: NDArray) -> bool:
        moved = self._moved.get((name, device))
        if moved is None:
            return False
        if moved.holds and (moved.array is gradient or address_of(moved.array) == address_of(gradient)):
            return True
        # The user took this array before the move: its values are in the arena, where backward has not written since.
        if not moved.is_settled and address_of(moved.other) == address_of(gradient):
            moved.array.wait_to_read()
            self._move_out(name, device)
            return True
        # The last sum may be under way, and MXNet orders later work after it only on the array that it uses.
        if not moved.holds:
            mx.nd.waitall()
        self._leave(name, device)
        return False

    def _leave(self, name: str, device: int) -> None:
        """Give the user's array memory of its own, if it was moved."""
        moved = self._moved.get((name, device))
        if moved is not None:
            self._move_out(name, device, moved.leave() if moved.holds else None)

    def _move_out(self, name: str, device: int, slot: NDArray | None = None) -> None:
        """Use another array over the slot from now on: the user's array is no longer the slot."""
        del self._moved[name, device]
        self._slots[name][device] = array_over(self._gradients.views(name)[device]) if slot is None else slot


class UsualSums:
    """The sums that a step repeats: each of a gradient that was moved to the arena, and in its place.

    They are begun without the checks that a sum needs when it is new, in half the time.
    """

    def __init__(self, steps: ProgramSteps, gradients: Gradients) -> None:
        self._steps = steps
        self._gradients = gradients
        self._known: dict[int | str, tuple[str, MovedGradient, list[NDArray]]] = {}
        """The name, and the gradient, of each key whose sum was usual."""

    def note(self, key: int | str, name: str, moved: MovedGradient | None) -> None:
        """Note that a key was summed in a step, in place, and that nothing updates it. `moved`: its only gradient."""
        if moved is None:
            self._known.pop(key, None)
        else:
            self._known[key] = name, moved, [moved.array]

    def begin(self, key: Any, value: Any, priority: int) -> bool:
        """Begin to sum `value` in place if that is usual for the key. Returns whether it has done so."""
        kind = type(key)
        usual = self._known.get(key) if kind is int or kind is str else None
        if usual is None:
            return False
        name, moved, arrays = usual
        array = value[0] if type(value) is list and len(value) == 1 else value
        if array is not moved.array or not moved.holds or self._steps.is_first(name):
            return False
        self._steps.pushed[name] = arrays
        operate(arrays, self._gradients.push(name), priority)
        return True

    def forget(self) -> None:
        """Let the next sum of each key be checked in full."""
        self._known.clear()


def _is_gradient_of(weight: NDArray, array: NDArray, slot: NDArray) -> bool:
    """Return whether autograd writes the gradient of `weight` to `array`, a dense CPU array like `slot`."""
    gradient = weight.grad
    if gradient is None or gradient.stype != "default" or array.stype != "default" or array.size == 0:
        return False
    is_like_slot = array.shape == slot.shape and array.dtype == slot.dtype
    return is_like_slot and array.context.device_type == "cpu" and address_of(gradient) == address_of(array)
