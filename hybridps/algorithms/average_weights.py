"""Groups that train weights of their own and average them at times: elastic, easgd, eamsgd, local, diloco.

| trigger | tier | sends | clock | rule | codec |
|---|---|---|---|---|---|
| every step | group | gradients, by allreduce | | sum | the group's |
| the row's | servers | weights | the row's | the row's | exact |

In each step, a group of m workers with batch size b computes

    w <- w - eta / (m b) sum of the group's g_i.

Before this update, if the trigger says so, the group exchanges its weights by the row's rule. All ranks of a group have
identical weights.

`reduce_` scales the group's sum of gradients by workers / m, so that it stands for the sum over all workers. A script
that divides by the number of all workers then takes the same steps with every algorithm.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable

import numpy as np
from msgspec.structs import replace

from hybridps.algorithms.algorithm import Algorithm
from hybridps.algorithms.row import Row
from hybridps.errors import ConfigError
from hybridps.memory import Layout
from hybridps.ps.model import Rules
from hybridps.ps.rules import Elastic
from hybridps.tensor_collectives import Levels, Tensor, allreduce_
from hybridps.tiers import GroupTrigger, Tier
from hybridps.triggers.norms import squared_distances_, squares_

KEPT_RATES = 1000
"""The number of steps for which learning rates are kept: a program can be this far ahead of its communication."""

MOST_SPANS = 128
"""The number of spans that are exchanged at a time. A server takes at most 256 parts of a chunk from one group."""


class AverageWeights(Algorithm):
    """One rank's part in an algorithm that averages weights. `Algorithm` documents the methods and arguments."""

    def __init__(self, levels: Levels, tier: Tier, row: Row, workers: int) -> None:
        super().__init__(levels, tier, row, workers)
        self.has_centre = tier.has_servers
        self._divisor = levels.group.size / workers
        """The group's sum is divided by this, so that it stands for the sum over all workers."""
        self._alpha: float | None = None
        """The alpha of Elastic SGD, if it follows the number of groups and that number has changed."""
        self._hands_in = False
        self._triggers: dict[str, GroupTrigger] = {}
        self._before: dict[str, np.ndarray] = {}
        """On the leader: the weights before an exchange, if the centre replaces them. They are needed for the
        distance."""
        self._distance = math.nan
        self._tau = np.zeros(1, np.int64)
        self._rate: float | None = None
        self._rates: dict[int, float] = {}
        """The learning rates of the latest steps. The program notes them ahead of the averaging that uses them."""
        self.reduce_, self.finish_ = self._reduce_in_group_, lambda exchange: None

    def join_weights(self, table: str, layout: Layout, weights: Tensor, receives: bool = False) -> bool:
        late = super().join_weights(table, layout, weights, receives)
        if self.has_centre:
            together = self.tier if self.is_synchronous else None
            given = (self.row.trigger, self.levels.group, table, layout, weights.vectors[0], together)
            self._triggers[table] = GroupTrigger(*given)
            if self.levels.group.rank == 0 and self.row.rule.answer_is_new_value:
                self._before[table] = np.empty(layout.length, layout.dtype)
        return late

    def averages(self, step: int) -> bool:
        return self.has_centre and step > 0 and (self.decides_ahead or self.row.trigger.may_be_due(step))

    @property
    def decides_ahead(self) -> bool:
        return self.has_centre and self.row.trigger.decides_ahead and not self.is_synchronous

    def next_tau(self, tables: Iterable[str]) -> int:
        # Each table's trigger counts only the cost of that table, so the periods are added.
        tau = sum(self._triggers[table].next_tau() for table in tables)
        self._tau[0] = max(1, min(tau, getattr(self.row.trigger, "silence", None) or tau))
        self.levels.group.broadcast_(self._tau)
        return int(self._tau[0])

    def average_(self, table: str, weights: Tensor, step: int) -> int:
        trigger, values = self._triggers[table], weights.vectors[0]
        spans = trigger.spans(step, values)
        if self._hands_in and not self.is_synchronous:
            spans = [(0, values.size)]
        if not spans:
            return 0
        if self.tier.is_alone(table, weights):
            self.skipped += 1
            return 0
        began = time.monotonic()
        before = self._before.get(table)
        if before is not None:
            np.copyto(before, values)
        squares = 0.0
        for first in range(0, len(spans), MOST_SPANS):
            these = spans[first : first + MOST_SPANS]
            begun = [self.tier.exchange(table, weights, start, stop, self._rules(step, stop)) for start, stop in these]
            for (start, stop), exchange in zip(these, begun, strict=True):
                self.tier.finish(exchange)
                here = self.tier.distance if before is None else _distance(before[start:stop], values[start:stop])
                squares += (stop - start) * here**2
        length = sum(stop - start for start, stop in spans)
        self._distance = math.sqrt(squares / length)
        trigger.sent(step, values, length * values.itemsize, time.monotonic() - began)
        return length * values.itemsize

    @property
    def distance(self) -> float:
        return self._distance

    def change(self, table: str) -> float:
        state = self._triggers[table].state
        return math.nan if state is None else state.change

    def follow(self, groups: int, workers: int, hands_in: bool) -> None:
        self._divisor = self.levels.group.size / workers
        self._alpha = 0.9 / groups if self.row.alpha_of_groups else None
        self._hands_in = hands_in

    def note_rate(self, step: int, rate: float) -> None:
        self._rate = self._rates[step] = rate
        self._rates.pop(step - KEPT_RATES, None)

    def drop(self, tables: Iterable[str]) -> None:
        tables = list(tables)
        super().drop(tables)
        for table in tables:
            self._before.pop(table, None)
            trigger = self._triggers.pop(table, None)
            if trigger is not None:
                trigger.drop()

    def _rules(self, step: int, stop: int) -> Rules:
        """Return the rule for elements before `stop`, with alpha from the learning rate or the number of groups.

        Returns no rules if the table's own rule applies. Raises ConfigError if alpha is unknown or out of bounds.
        """
        rho, rule = self.row.rho, self.row.rule
        if self._alpha is not None and isinstance(rule, Elastic) and self._alpha != rule.alpha:
            return ((stop, replace(rule, alpha=self._alpha)),)
        if rho is None or not isinstance(rule, Elastic):
            return ()
        rate = self._rates.get(step, self._rate)
        if rate is None:
            raise ConfigError(
                f"HYBRIDPS_RHO={rho} ties alpha to the learning rate, which is not known: let the store update "
                "(kvstore.set_optimizer, or Trainer with update_on_kvstore=True), or set HYBRIDPS_ALPHA instead"
            )
        alpha = rate * rho
        if not 0 <= alpha <= 1:
            raise ConfigError(
                f"alpha = rate * rho = {rate} * {rho} = {alpha} in step {step} is not between 0 and 1: use a smaller "
                "HYBRIDPS_RHO"
            )
        return ((stop, replace(rule, alpha=alpha)),)

    def _reduce_in_group_(self, table: str, gradients: Tensor, start: int, stop: int, rules: Rules = ()) -> None:
        if gradients.dtype.kind == "f":
            allreduce_(gradients, self.levels.group, "sum", start, stop, self._divisor)
            return
        allreduce_(gradients, self.levels.group, "sum", start, stop)
        for vector in gradients.vectors:
            vector[start:stop] = np.rint(vector[start:stop] / self._divisor)


def _distance(before: np.ndarray, after: np.ndarray) -> float:
    """Return |before - after| / |before|, or nan if `before` is 0."""
    edges, moved, size = np.array([0, before.size]), np.zeros(1), np.zeros(1)
    squared_distances_(moved, edges, before, after)
    squares_(size, edges, before)
    return math.sqrt(moved[0] / size[0]) if size[0] else math.nan
