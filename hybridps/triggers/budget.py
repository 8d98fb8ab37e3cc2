"""`budget`: a trigger that controls its threshold on the change so that a group sends at a given rate."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Annotated, Literal

import numpy as np
from msgspec import Meta

from hybridps.errors import ConfigError
from hybridps.memory import Layout
from hybridps.triggers.change import ChangeState
from hybridps.triggers.trigger import State, Watching

UNITS = {"B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
SAVED = 8
"""The number of exchanges for which a group can save credit, for a time in which the weights change faster."""
LEARNT = 0.2
"""The weight of the latest exchange in the moving average `typical`."""


class Budget(Watching, frozen=True, tag="budget", kw_only=False):
    """`budget:RATE`: communicate when c >= theta, with c as in `Change`. Theta is controlled so that each group sends
    as many bytes as the rate allows, and at most one exchange more.

    Credit grows by the rate, up to `SAVED` exchanges; the bytes sent are taken from it. With f = credit / (SAVED bytes
    of an exchange), and typical the moving average of c at the exchanges,

        theta = 2 typical (1 - f)    if credit >= 0, else infinite.

    So theta falls to 0 as credit is saved, and rises as it is spent. With rate 0 the group never communicates. If the
    group gossips, its answers to others are taken from its credit as well. The rate is that of one table; weights of
    two dtypes are two tables.
    """

    nbytes: Annotated[float, Meta(ge=0, le=1e300)]
    """Payload bytes per second, or per step."""
    per: Literal["second", "step"] = "second"

    def start(self, layout: Layout, weights: np.ndarray, now: Callable[[], float] = time.monotonic) -> State:
        """As `Trigger.start`. `now`: a monotonic clock, in seconds."""
        return BudgetState(self, self.edges(layout), weights, now)


class BudgetState(ChangeState):
    """The state of a `Budget` trigger for one table."""

    def __init__(self, trigger: Budget, edges: np.ndarray, weights: np.ndarray, now: Callable[[], float]) -> None:
        super().__init__(trigger, edges, weights)
        self._rate, self._per_step, self._now = trigger.nbytes, trigger.per == "step", now
        self._message = max(1, weights.nbytes)
        """The bytes of the latest exchange; before the first one, those of the whole table."""
        self._credit = 0.0
        self._typical: float | None = None
        self._last = 0.0 if self._per_step else now()
        """When credit was last added: a step, or seconds of the clock."""

    @property
    def theta(self) -> float:
        """The current threshold; nan before the first exchange, which only waits for credit."""
        if self._credit < 0 or not self._rate:
            return float("inf")
        if self._typical is None:
            return float("nan")
        return 2 * self._typical * (1 - self._credit / (SAVED * self._message))

    def _look(self, step: int, weights: np.ndarray) -> None:
        now = float(step) if self._per_step else self._now()
        most = SAVED * self._message
        self._credit = min(most, self._credit + self._rate * (now - self._last))
        self._last = now
        super()._look(step, weights)

    def _compare(self) -> None:
        self.fired[:] = not self.change < self.theta

    def _refer(self, step: int, weights: np.ndarray, nbytes: int, began_here: bool) -> None:
        self._credit -= nbytes
        if began_here and nbytes:
            self._message = nbytes
            typical = self.change if self._typical is None else self._typical
            self._typical = (1 - LEARNT) * typical + LEARNT * self.change
        super()._refer(step, weights, nbytes, began_here)


def parse_rate(text: str, epoch_steps: int | None = None) -> tuple[float, Literal["second", "step"]]:
    """Return the bytes, and the unit that they are per, of text such as `10MB/s` or `500KB/step`.

    `epoch_steps`: the steps of an epoch, needed for text such as `200MB/epoch`. Raises ConfigError.

    >>> parse_rate("10MB/s"), parse_rate("200 KiB/step"), parse_rate("1GB/epoch", 500)
    ((10000000.0, 'second'), (204800.0, 'step'), (2000000.0, 'step'))
    """
    found = re.fullmatch(r"\s*([0-9.]+(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z]*)/(s|step|epoch)\s*", text)
    unit = (found[2].upper() or "B") if found else ""
    try:
        nbytes = float(found[1]) * UNITS[unit] if found else float("nan")
    except (ValueError, KeyError):
        nbytes = float("nan")
    if found is None or not nbytes < 1e300:
        raise ConfigError(f"the rate {text!r} cannot be used: write 10MB/s, 500KB/step or 200MB/epoch,epoch=STEPS")
    if found[3] == "epoch":
        if not epoch_steps:
            raise ConfigError(f"the rate {text!r} needs the steps of an epoch: write {text.strip()},epoch=STEPS")
        return nbytes / epoch_steps, "step"
    return nbytes, "second" if found[3] == "s" else "step"
