"""`change`: communicate when the local weights have changed enough since the last exchange."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from msgspec import Meta

from hybridps.memory import Layout
from hybridps.triggers.norms import squared_distances_, squares_
from hybridps.triggers.trigger import NotNegative, State, Watching, WatchingState


class Change(Watching, frozen=True, tag="change", kw_only=False):
    """`change:THETA`: communicate when c = |w - reference| / |reference| >= theta.

    The reference is w after the last exchange. theta = 0 means every step; theta = inf with silence = tau means every
    tau steps; with both infinite the group never communicates.

    Idea: *Adaptive communication for gossiping SGD*, Ho, Wu, Liu, CCGRID 2018, which exchanges models "according to the
    change of the local model". Its exact criterion is not public: c and the reference are our reconstruction.
    """

    theta: NotNegative | None
    """The threshold; None is infinite."""

    chunk: Annotated[int, Meta(ge=64, multiple_of=64)] | None = None
    """Bytes of the parts that are decided on separately. None: the whole table is one part."""

    def edges(self, layout: Layout) -> np.ndarray:
        step = max(1, self.chunk // layout.itemsize if self.chunk else layout.length)
        return np.array([*range(0, layout.length, step), layout.length], np.int64)

    def start(self, layout: Layout, weights: np.ndarray) -> State:
        return ChangeState(self, self.edges(layout), weights)


class ChangeState(WatchingState):
    """The state of a `Change` trigger for one table. Similar triggers derive from it."""

    def __init__(self, trigger: Watching, edges: np.ndarray, weights: np.ndarray) -> None:
        super().__init__(trigger, edges)
        self._theta = getattr(trigger, "theta", None)
        self._reference = weights.copy()
        self._sizes = np.zeros(edges.size - 1)
        """Squared norm of each part of the reference."""
        self._changes = np.zeros(edges.size - 1)
        """Squared norm of the change of each part."""
        squares_(self._sizes, edges, self._reference)

    def _look(self, step: int, weights: np.ndarray) -> None:
        squared_distances_(self._changes, self.edges, weights, self._reference)
        changed, size = float(self._changes.sum()), float(self._sizes.sum())
        self.change = (changed / size) ** 0.5 if size else float("inf") if changed else 0.0
        self._compare()

    def _compare(self) -> None:
        if self._theta is None:
            self.fired[:] = False
            return
        # NaN fires, so that the exchange reports it.
        np.logical_not(self._changes < self._theta**2 * self._sizes, out=self.fired)

    def _refer(self, step: int, weights: np.ndarray, nbytes: int, began_here: bool) -> None:
        if not self.fired.any():
            return
        if self.fired.all():
            np.copyto(self._reference, weights)
        else:
            for part in np.flatnonzero(self.fired):
                start, stop = self.edges[part], self.edges[part + 1]
                self._reference[start:stop] = weights[start:stop]
        squares_(self._sizes, self.edges, self._reference)
