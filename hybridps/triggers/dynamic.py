"""`dynamic`: all groups average when the local weights of one have left a ball around the last average."""

from __future__ import annotations

import numpy as np

from hybridps.memory import Layout
from hybridps.triggers.change import ChangeState
from hybridps.triggers.trigger import NotNegative, State, Watching


class Dynamic(Watching, frozen=True, tag="dynamic", kw_only=False):
    """`dynamic:DELTA`: communicate when |w - reference|^2 > delta; then all groups average.

    The reference is w after the last exchange, the same in all groups after an average. With delta = 0 the group
    communicates as soon as the weights have changed at all.

    Source: *Efficient decentralized deep learning by dynamic model averaging*, Kamp et al., ECML PKDD 2018 (arXiv
    1807.03210), in the form that always averages all groups; `check` is its b.
    """

    delta: NotNegative | None
    """The threshold; None is infinite."""

    def start(self, layout: Layout, weights: np.ndarray) -> State:
        return DynamicState(self, self.edges(layout), weights)


class DynamicState(ChangeState):
    """The state of a `Dynamic` trigger for one table."""

    def __init__(self, trigger: Dynamic, edges: np.ndarray, weights: np.ndarray) -> None:
        super().__init__(trigger, edges, weights)
        self._delta = trigger.delta

    def _compare(self) -> None:
        self.fired[:] = self._delta is not None and not self._changes[0] <= self._delta
