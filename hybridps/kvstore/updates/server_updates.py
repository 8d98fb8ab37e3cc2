"""MXNet's weights that the servers hold and update by the gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from mxnet.ndarray import NDArray

from hybridps.kvstore.arrays import operate
from hybridps.kvstore.centre import Centre
from hybridps.kvstore.gradient_arrays import Arrays, GradientArrays
from hybridps.kvstore.updates.optimizers import rule_of_update
from hybridps.ps.model import Joining
from hybridps.ps.rules import AnyRule
from hybridps.step import Gradients


class ServerUpdates:
    """Keys that the servers update. Operations return at once; MXNet's engine makes users of the arrays wait.

    `updater`: MXNet's, whose optimizer gives the numbers of each update. `gradients`: those of an algorithm that
    updates by `rule`. `scale`, `pushes` and `any_numbers` as in `rule_of_update`.
    """

    def __init__(
        self, rule: AnyRule, updater: Any, gradients: Gradients, scale: float, pushes: int | None, any_numbers: bool
    ) -> None:
        self.rule = rule
        self._updater = updater
        self._gradients = gradients
        self._scale = scale
        self._pushes = pushes
        self._any_numbers = any_numbers
        self._arrays = GradientArrays(gradients)
        self._centre = Centre(gradients.read_centre)
        self._new: set[str] = set()
        """Keys that were updated since they were last pulled."""

    def __contains__(self, name: str) -> bool:
        """Return whether the servers hold the key."""
        return name in self._gradients

    @property
    def joined(self) -> Joining:
        """What the group found at the servers, as `Gradients.joined`. The stored values count only if it is `NEW`."""
        return self._gradients.joined

    def add(self, weights: Mapping[str, Arrays], stored: Mapping[str, NDArray]) -> None:
        """Let the servers hold these keys, with their `stored` values or with those there. Waits for other workers.

        `weights`: arrays like those of each key, one for each device.
        """
        self._arrays.lay_out(weights)
        slots = {name: self._arrays.slot(name) for name in weights}
        for name, slot in slots.items():
            stored[name].copyto(slot)
        operate(list(slots.values()), self._gradients.join_weights())
        for slot in slots.values():
            slot.wait_to_read()

    def begin(self) -> None:
        """Begin a step."""
        self._arrays.move_out_what_is_written_elsewhere()
        self._gradients.begin()

    def update(self, name: str, index: int | str, values: Arrays, priority: int, in_step: bool) -> Arrays:
        """Begin to update a key by a gradient, one array for each device. Return the arrays for the new weights."""
        given = (self._scale, self._pushes, self._any_numbers)
        rule = rule_of_update(self.rule, self._updater.optimizer, index, *given)
        self._new.add(name)
        self._centre.forget()
        return self._arrays.sum(name, values, priority, in_step, rule)

    def move_in(self, weights: Mapping[str, Arrays], gradients: Mapping[str, Arrays]) -> None:
        """Let backward write these gradients directly into the arenas, where that is safe. Waits for the gradients."""
        stay = {name: arrays for name, arrays in gradients.items() if name in self and self._arrays.stay(name)}
        self._arrays.move_in(weights, stay)

    def slot(self, name: str) -> NDArray:
        """Return the array with the result of a key's last update."""
        return self._arrays.slot(name)

    def weights(self, name: str) -> NDArray:
        """Return the result of a key's last update; when called again, the weights that the servers hold now.

        The two are the same if all workers' gradients make one update.
        """
        if self._pushes is None or name in self._new:
            self._new.discard(name)
            return self._arrays.slot(name)
        return self._centre.take(name)

    def pull_states(self) -> dict[str, list[np.ndarray]]:
        """As `Gradients.pull_states`."""
        return self._gradients.pull_states()

    def put_states(self, states: Mapping[str, Sequence[np.ndarray | None]]) -> None:
        """As `Gradients.put_states`."""
        self._gradients.put_states(states)

    def settle(self) -> None:
        """End the step under way without the keys that are missing."""
        self._gradients.settle()

    def close(self) -> None:
        """Drop the tables at the servers. May be called from any thread, once."""
        self._gradients.close()
