"""`adapt`: a trigger whose period follows the speed of the weights and the cost of an exchange."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Annotated

import numpy as np
from msgspec import Meta

from hybridps.memory import Layout
from hybridps.triggers.change import ChangeState
from hybridps.triggers.trigger import NotNegative, State, Watching, WatchingState

LEARNT = 0.5
"""The weight of the latest value in a moving average."""


class Adapt(Watching, frozen=True, tag="adapt", kw_only=False):
    """`adapt:THETA[,share=SHARE]`: communicate every tau steps. Each group computes its tau anew at each exchange:

        tau = max(theta / speed, cost / (share step)), at most twice what it was, and not above `silence`.

    speed is c per step, with c as in `Change` and measured at exchanges only; cost is the seconds of an exchange; step
    is the seconds of a step. All three are moving averages. So c is about theta at the exchanges, and these take at
    most `share` of the time. The weights are not read in other steps, and never with theta = 0. This trigger is our
    own.
    """

    decides_ahead = True

    theta: NotNegative
    share: Annotated[float, Meta(gt=0, le=1)] = 1.0
    """The largest part of the time of the steps between two exchanges that an exchange may take; 1 allows as much time
    as the steps take."""

    def start(self, layout: Layout, weights: np.ndarray, now: Callable[[], float] = time.monotonic) -> State:
        """As `Trigger.start`. `now`: a monotonic clock, in seconds."""
        return AdaptState(self, self.edges(layout), weights, now)


class AdaptState(WatchingState):
    """The state of an `Adapt` trigger for one table."""

    def __init__(self, trigger: Adapt, edges: np.ndarray, weights: np.ndarray, now: Callable[[], float]) -> None:
        super().__init__(trigger, edges)
        self.tau = 1
        self._threshold, self._share, self._now = trigger.theta, trigger.share, now
        self._longest = trigger.silence or math.inf
        self._watched = ChangeState(trigger, edges, weights) if trigger.theta else None
        """Measures how far the weights have moved; None if theta = 0."""
        self._speed = self._cost = self._step = math.nan
        self._has_exchanged = False
        self._ended = now()
        """When the last exchange ended."""

    def measure(self, step: int, weights: np.ndarray) -> None:
        if self._watched is not None:
            self._watched._look(step, weights)
            self.change = self._watched.change
        self.fired[:] = True

    def _look(self, step: int, weights: np.ndarray) -> None:
        if step - self._sent_at[0] >= self.tau:
            self.measure(step, weights)
        else:
            self.fired[:] = False
            self.change = math.nan

    def sent(
        self, step: int, weights: np.ndarray, nbytes: int = 0, seconds: float = 0.0, began_here: bool = True
    ) -> None:
        age = max(1, step - int(self._sent_at[0]))
        ended = self._now()
        came_late, self._has_exchanged = age > self.tau and not self._has_exchanged, True
        if began_here and not came_late and (self._watched is None or math.isfinite(self.change)):
            self._speed = _averaged(self._speed, self.change / age)
            self._cost = _averaged(self._cost, seconds)
            self._step = _averaged(self._step, max(0.0, ended - self._ended - seconds) / age)
            self.tau = self._next_tau()
        self._ended = ended
        super().sent(step, weights, nbytes, seconds, began_here)

    def _refer(self, step: int, weights: np.ndarray, nbytes: int, began_here: bool) -> None:
        if self._watched is not None:
            self._watched.fired[:] = self.fired
            self._watched.sent(step, weights, nbytes)

    def _next_tau(self) -> int:
        by_cost = self._cost / (self._share * self._step) if self._step else 0.0
        by_speed = 0.0
        if self._watched is not None:
            by_speed = self._threshold / self._speed if self._speed else math.inf
        return max(1, round(min(2 * self.tau, self._longest, max(by_speed, by_cost))))


def _averaged(before: float, now: float) -> float:
    return now if math.isnan(before) else (1 - LEARNT) * before + LEARNT * now
