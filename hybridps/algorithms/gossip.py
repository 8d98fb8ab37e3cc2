"""Gossiping SGD, `gossip`: groups average with one another, without servers.

| trigger | tier | sends | clock | rule | codec |
|---|---|---|---|---|---|
| every tau steps, or as given | gossip | weights, to a partner | none: nobody waits | the mean of both | exact |

When the trigger says so, group i sends its weights to a partner j. Both move to the mean of w_i as it was sent and w_j
as it is when the weights arrive:

    d = (w_i - w_j) / 2,    w_j <- w_j + d,    w_i <- w_i - d.

With HYBRIDPS_GOSSIP=pull, j answers with w_j and does not move, and w_i <- (w_i + w_j) / 2. With a trigger on the
change of the weights this is the adaptive form (Ho, Wu, Liu, 2018). `AverageWeights` describes the steps inside a
group; docs/algorithms.md has the sources.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np

from hybridps.algorithms.average_weights import AverageWeights
from hybridps.algorithms.row import Asked, Definition, Row
from hybridps.errors import ConfigError
from hybridps.gossip import Partnership, Span, parse
from hybridps.memory import Layout
from hybridps.ps.clocks import FreeRunning
from hybridps.ps.rules import Elastic
from hybridps.tensor_collectives import Levels, Tensor
from hybridps.tiers import GossipTier, Tier
from hybridps.tiers.gossip import Touched
from hybridps.triggers import Budget, State
from hybridps.triggers.trigger import runs


def row(asked: Asked) -> Row:
    """Return the row: weights, sent to a random peer unless the settings say otherwise."""
    return gossiping(asked, asked.settings.gossip, "random")


def gossiping(asked: Asked, exchange: Literal["symmetric", "pull", "push"], usual: str) -> Row:
    """Return the row of an algorithm that gossips, with its `usual` topology.

    Raises ConfigError for a rule or clock, and for a trigger that cannot be used with this kind of exchange.
    """
    settings = asked.settings
    if asked.rule is not None or asked.clock is not None:
        raise ConfigError(f"{asked.rule or asked.clock} has no meaning without servers: leave it out")
    if exchange == "pull" and isinstance(asked.trigger, Budget):
        raise ConfigError(
            f"HYBRIDPS_TRIGGER={settings.trigger!r} has no meaning with HYBRIDPS_GOSSIP=pull, where a group sends what "
            "others ask for: use HYBRIDPS_GOSSIP=symmetric, or another trigger"
        )
    topology = parse(settings.topology or usual)
    return Row(
        trigger=asked.trigger,
        tier="gossip",
        sends="weights",
        holds="weights",
        clock=FreeRunning(),
        rule=Elastic(0.5),
        partnership=Partnership(exchange, topology.name, topology.seed, settings.partners == "fast"),
    )


class Gossip(AverageWeights):
    """One rank's part in an algorithm that gossips. `Algorithm` documents the methods. One group never averages."""

    def __init__(self, levels: Levels, tier: Tier, row: Row, workers: int) -> None:
        super().__init__(levels, tier, row, workers)
        self._gossip_tier = tier if isinstance(tier, GossipTier) else None
        self._states: dict[str, State] = {}
        """On the leader: the trigger's state for each table."""
        self._step = 0

    def initialise(self, table: str, layout: Layout, values: Tensor) -> bool:
        if self._gossip_tier is None:
            return super().initialise(table, layout, values)
        return not self._gossip_tier.share(f"{table}.initial", layout, values)

    def join_weights(self, table: str, layout: Layout, weights: Tensor, receives: bool = False) -> bool:
        late = super().join_weights(table, layout, weights, receives)
        if self.levels.group.rank == 0:
            self._states[table] = self.row.trigger.start(layout, weights.vectors[0])
        return late

    def averages(self, step: int) -> bool:
        return self._gossip_tier is not None and step > 0

    def average_(self, table: str, weights: Tensor, step: int) -> int:
        if self._gossip_tier is None:
            return 0
        self._step = step

        def due() -> Sequence[Span]:
            state = self._states[table]
            return runs(state.fired, state.edges) if state.due(step, weights.vectors[0]) else ()

        return self._gossip_tier.average_(table, weights, due, self._touched(table, weights))

    def settle_(self, table: str, weights: Tensor) -> None:
        """Take in all that is under way between the groups. All ranks of all groups call this, at the end."""
        if self._gossip_tier is not None:
            self._gossip_tier.settle_(table, weights, self._touched(table, weights))

    @property
    def distance(self) -> float:
        return self.tier.distance

    def change(self, table: str) -> float:
        state = self._states.get(table)
        looked = state is not None and self.row.trigger.may_be_due(self._step)
        return state.change if state is not None and looked else math.nan

    def drop(self, tables: Iterable[str]) -> None:
        tables = list(tables)
        super().drop(tables)
        for table in tables:
            self._states.pop(table, None)

    def _touched(self, table: str, weights: Tensor) -> Touched:
        """Return a function that tells the trigger of a table which of its parts were exchanged."""

        def tell(spans: Sequence[Span], nbytes: int, seconds: float, began_here: bool) -> None:
            state = self._states[table]
            state.fired[:] = _within(state.edges, spans)
            state.sent(self._step, weights.vectors[0], nbytes, seconds, began_here)

        return tell


def _within(edges: np.ndarray, spans: Sequence[Span]) -> np.ndarray:
    """Return which of the parts between `edges` lie in these spans.

    >>> _within(np.array([0, 4, 8, 12]), [(0, 4), (8, 12)])
    array([ True, False,  True])
    """
    found = np.zeros(edges.size - 1, bool)
    for start, stop in spans:
        found |= (edges[:-1] >= start) & (edges[1:] <= stop)
    return found


GOSSIP = Definition(row, Gossip, also=("gossiping-sgd", "adaptive-gossip"), gossips=True)
