"""EventGraD: a key communicates when its norm has moved by more than a threshold that follows its speed."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from msgspec import Meta

from hybridps.memory import Layout
from hybridps.triggers.norms import squares_
from hybridps.triggers.trigger import State, Watching, WatchingState


class EventGrad(Watching, frozen=True, tag="eventgrad", kw_only=False):
    """`eventgrad[:HORIZON]`: key k communicates when | |w_k| - |w_k| when last sent | >= threshold_k.

    In each step threshold_k <- horizon threshold_k. When key k is sent, threshold_k becomes the mean of its last two
    slopes. A slope is the move of the key's norm between two exchanges, divided by the steps between them. In the
    `first` steps all keys are sent.

    Source: *EventGraD: Event-triggered communication in parallel stochastic gradient descent*, Ghosh et al., 2020
    (arXiv 2103.07454), as in its authors' code.
    """

    horizon: Annotated[float, Meta(gt=0, le=1e6)] = 0.95
    first: Annotated[int, Meta(ge=0)] = 30
    """The number of steps, from the beginning, in which all keys are sent."""

    def edges(self, layout: Layout) -> np.ndarray:
        return np.array([*(slot.start for slot in layout.slots), layout.length], np.int64)

    def start(self, layout: Layout, weights: np.ndarray) -> State:
        return EventGradState(self, self.edges(layout), weights)


class EventGradState(WatchingState):
    """The state of an `EventGrad` trigger for one table."""

    def __init__(self, trigger: EventGrad, edges: np.ndarray, weights: np.ndarray) -> None:
        super().__init__(trigger, edges)
        self._horizon, self._first = trigger.horizon, trigger.first
        keys = edges.size - 1
        self._norms, self._sent_norms, self._moves, self._thresholds = (np.zeros(keys) for _ in range(4))
        self._slopes = np.zeros((2, keys))
        """The last slope of each key, and the one before it."""
        self._measure(weights)
        np.copyto(self._sent_norms, self._norms)

    def _look(self, step: int, weights: np.ndarray) -> None:
        self._measure(weights)
        np.subtract(self._norms, self._sent_norms, out=self._moves)
        np.abs(self._moves, out=self._moves)
        self._thresholds *= self._horizon
        np.logical_not(self._moves < self._thresholds, out=self.fired)  # NaN fires
        if step <= self._first:
            self.fired[:] = True
        size = float(np.linalg.norm(self._sent_norms))
        self.change = float(np.linalg.norm(self._moves)) / size if size else float("nan")

    def _refer(self, step: int, weights: np.ndarray, nbytes: int, began_here: bool) -> None:
        sent = self.fired
        if not began_here:  # Others have moved the weights, so this move is no slope of the group's own.
            self._measure(weights)
            self._sent_norms[sent] = self._norms[sent]
            return
        self._slopes[1, sent] = self._slopes[0, sent]
        self._slopes[0, sent] = self._moves[sent] / np.maximum(1, step - self._sent_at[sent])
        self._thresholds[sent] = self._slopes[:, sent].mean(0)
        self._sent_norms[sent] = self._norms[sent]

    def _measure(self, weights: np.ndarray) -> None:
        squares_(self._norms, self.edges, weights)
        np.sqrt(self._norms, out=self._norms)
