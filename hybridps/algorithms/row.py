"""The row that describes an algorithm: what its groups exchange over their tier, when, and by which rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta

from hybridps.codecs import CodecSpec
from hybridps.config import Settings
from hybridps.gossip import Partnership
from hybridps.ps.clocks import BulkSynchronous, Clock
from hybridps.ps.rules import AnyRule, Rule
from hybridps.triggers import AnyTrigger, Every, parse

if TYPE_CHECKING:
    from hybridps.algorithms.algorithm import Algorithm

USUAL = Every(10)
"""The default trigger, used unless the settings give one: all groups average together."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What a group exchanges with others through its tier. All ranks and groups of a job have the same row."""

    name: str = ""
    """The name of the algorithm, as users give it. `choose_row` sets it."""
    trigger: AnyTrigger = Every(1)
    """When weights are exchanged. Gradients are exchanged in every step."""
    tier: Literal["servers", "gossip"] = "servers"
    """Where an exchange goes: to the servers, if the job has any, or to other groups."""
    sends: Literal["gradients", "weights"]
    """What the group contributes."""
    holds: Literal["gradients", "weights"]
    """What the centre of the table holds."""
    clock: Clock
    rule: AnyRule
    codec: CodecSpec = "exact"
    partnership: Partnership | None = None
    """How groups that gossip average with each other."""
    rho: Annotated[float, Meta(ge=0)] | None = None
    """If given, the rule's alpha is the learning rate times rho in each exchange."""
    alpha_of_groups: bool = False
    """Whether the rule's alpha is 0.9 / groups and follows the number of groups."""
    optimizer: Literal["any", "nesterov"] = "any"
    """The optimizer that each worker must use, checked where it is visible."""

    @property
    def is_synchronous(self) -> bool:
        """Whether every round has a contribution from each group."""
        return isinstance(self.clock, BulkSynchronous)

    @property
    def trains_in_step(self) -> bool:
        """Whether all groups do each step together, so that one that was restarted needs the state of another one."""
        return self.is_synchronous and self.sends == "gradients"


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What a row is made from: the settings, the job, and the rule and clock if the program gives them."""

    settings: Settings
    groups: int
    has_servers: bool = True
    rule: AnyRule | None = None
    clock: Clock | None = None

    @property
    def trigger(self) -> AnyTrigger:
        """The trigger from the settings `trigger` or `tau`, or else `USUAL`. Raises ConfigError."""
        return self.trigger_or(USUAL)

    def trigger_or(self, usual: AnyTrigger) -> AnyTrigger:
        """Return the trigger from the settings `trigger` or `tau`, or else `usual`. Raises ConfigError."""
        text, tau = self.settings.trigger, self.settings.tau
        if text is not None:
            return parse(text)
        return usual if tau is None else Every(tau)

    @property
    def alpha(self) -> float:
        """The moving rate of Elastic SGD; 0.9 / groups by default."""
        alpha = self.settings.alpha
        return 0.9 / self.groups if alpha is None else alpha


@dataclass(frozen=True)
class Definition:
    """An algorithm that users can name."""

    make_row: Callable[[Asked], Row]
    """Makes the row. Raises ConfigError if the algorithm cannot do what is asked."""
    kind: type[Algorithm] | None = None
    """The class of the algorithm, called with `(levels, tier, row, workers)`. None: it follows from what the row sends
    and holds."""
    rules: tuple[type[Rule], ...] = ()
    """The rules that the algorithm can use. An empty tuple allows any."""
    also: tuple[str, ...] = ()
    """Other names, as used in papers. With a `dist-` name each worker is a group of its own."""
    is_asynchronous: bool = False
    """Whether a server updates with the gradients of each group alone."""
    gossips: bool = False
    """Whether groups exchange with each other, so that no server is needed. Each worker is then a group of its own
    unless the settings say otherwise."""
