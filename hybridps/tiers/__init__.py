"""Tiers: where an exchange goes from a group.

`NoTier` goes nowhere, for one group without servers; in `UpdatingTier` its ranks update weights as servers would.
`ServersTier` is one rank of a group at the parameter servers, and `GossipTier` one of a group among others without
servers. An algorithm is given one of them and uses the methods of `Tier`, the same on all ranks. `GroupTrigger` says,
alike on all ranks of a group, when a table is exchanged.
"""

from hybridps.tiers.gossip import GossipTier
from hybridps.tiers.group_trigger import GroupTrigger
from hybridps.tiers.none import NoTier
from hybridps.tiers.servers import ServersTier
from hybridps.tiers.tier import Tier, check_same_layout
from hybridps.tiers.updating import UpdatingTier

__all__ = ["GossipTier", "GroupTrigger", "NoTier", "ServersTier", "Tier", "UpdatingTier", "check_same_layout"]
