"""A row of an algorithm's table: what goes over its tier, when, and what happens to it there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta

from hybridps.codecs import CodecSpec
from hybridps.config import Settings
from hybridps.gossip import Partnership
from hybridps.ps.clocks import Clock
from hybridps.ps.rules import AnyRule, Rule
from hybridps.triggers import AnyTrigger, Every, parse

if TYPE_CHECKING:
    from hybridps.algorithms.algorithm import Algorithm

USUAL = Every(10)
"""When weights are averaged where nothing is said, and all groups come together."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What a group exchanges with others through its tier. All ranks and groups of a job have the same."""

    name: str = ""
    """Of the algorithm, as users give it. Set by `choose_row`."""
    trigger: AnyTrigger = Every(1)
    """When. Gradients go in every step."""
    tier: Literal["servers", "gossip"] = "servers"
    """Where: to the servers, if the job has any, or to other groups."""
    sends: Literal["gradients", "weights"]
    """What the group contributes."""
    holds: Literal["gradients", "weights"]
    """What the centre of the table is."""
    clock: Clock
    rule: AnyRule
    codec: CodecSpec = "exact"
    partnership: Partnership | None = None
    """What groups that gossip do with each other."""
    rho: Annotated[float, Meta(ge=0)] | None = None
    """The alpha of the rule is the learning rate times rho, in each exchange. None: it is the rule's."""
    alpha_of_groups: bool = False
    """Whether the alpha of the rule is 0.9 / groups, and follows them."""
    optimizer: Literal["any", "nesterov"] = "any"
    """What each worker must update by, where it can be seen."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What a row is made from: the settings, the job, and the rule and clock that a program gives, if it does."""

    settings: Settings
    groups: int
    has_servers: bool = True
    rule: AnyRule | None = None
    clock: Clock | None = None

    @property
    def trigger(self) -> AnyTrigger:
        """When weights are averaged: as the settings `trigger` or `tau` say, or `USUAL`. Raises ConfigError."""
        return self.trigger_or(USUAL)

    def trigger_or(self, usual: AnyTrigger) -> AnyTrigger:
        """As `trigger`, with another one where the settings say nothing."""
        text, tau = self.settings.trigger, self.settings.tau
        if text is not None:
            return parse(text)
        return usual if tau is None else Every(tau)

    @property
    def alpha(self) -> float:
        """Moving rate of Elastic SGD; 0.9 / groups by default."""
        alpha = self.settings.alpha
        return 0.9 / self.groups if alpha is None else alpha


@dataclass(frozen=True)
class Definition:
    """An algorithm as it is known by name."""

    make_row: Callable[[Asked], Row]
    """Raises ConfigError for what cannot be."""
    kind: type[Algorithm] | None = None
    """Its class, called with `(levels, tier, row, workers)`. None: what the row sends and holds decides."""
    rules: tuple[type[Rule], ...] = ()
    """The rules that have a meaning with it; empty: any."""
    also: tuple[str, ...] = ()
    """Other names, as the papers have them. `dist-`: each worker is a group of its own."""
    is_asynchronous: bool = False
    """Whether servers update by each group's gradients alone."""
    gossips: bool = False
    """Whether groups exchange with each other, so that no server is needed. Each worker is a group of its own then,
    unless the settings say otherwise."""
