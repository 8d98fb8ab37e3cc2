"""`every`: communicate at a fixed period."""

from __future__ import annotations

import numpy as np

from hybridps.memory import Layout
from hybridps.triggers.trigger import AtLeastOne, State, Trigger


class Every(Trigger, frozen=True, tag="every", kw_only=False):
    """`every:TAU`: communicate before the local update of steps tau, 2 tau, ... `always` means `every:1`.

    >>> [step for step in range(10) if Every(4).may_be_due(step)]
    [4, 8]
    """

    by_step = True

    tau: AtLeastOne = 1

    def may_be_due(self, step: int) -> bool:
        return step > 0 and step % self.tau == 0

    def start(self, layout: Layout, weights: np.ndarray) -> State:
        return EveryState(self, self.edges(layout))


class EveryState(State):
    """The state of an `Every` trigger for one table."""

    def __init__(self, trigger: Every, edges: np.ndarray) -> None:
        super().__init__(edges)
        self._trigger = trigger

    def due(self, step: int, weights: np.ndarray) -> bool:
        self.fired[:] = self._trigger.may_be_due(step)
        return bool(self.fired.any())

    def sent(
        self, step: int, weights: np.ndarray, nbytes: int = 0, seconds: float = 0.0, began_here: bool = True
    ) -> None:
        """Do nothing: the step alone decides."""
