"""Tiers: where a group's exchanges go.

`NoTier` goes nowhere; it is for one group without servers. In `UpdatingTier` the ranks of that group update the
weights, as servers would. `ServersTier` exchanges with the parameter servers, and `GossipTier` with other groups,
without servers. An algorithm is given one tier and uses the methods of `Tier`, the same on all ranks. `GroupTrigger`
tells all ranks of a group when a table is exchanged. `Rejoining` and `hand_over` say how a group that was
restarted takes part again.
"""

from hybridps.tiers.gossip import GossipTier
from hybridps.tiers.group_trigger import GroupTrigger
from hybridps.tiers.hand_overs import Run, hand_over
from hybridps.tiers.none import NoTier
from hybridps.tiers.rejoining import Rejoining
from hybridps.tiers.servers import ServersTier
from hybridps.tiers.tier import Exchange, Tier, check_same_layout
from hybridps.tiers.updating import UpdatingTier

__all__ = [
    "Exchange",
    "GossipTier",
    "GroupTrigger",
    "NoTier",
    "Rejoining",
    "Run",
    "ServersTier",
    "Tier",
    "UpdatingTier",
    "check_same_layout",
    "hand_over",
]
