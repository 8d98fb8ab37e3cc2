"""Tiers: where an exchange goes from a group.

`NoTier` goes nowhere, for one group without servers. `LeaderTier` and `FollowerTier` are the two sides of a group at
the parameter servers. An algorithm is given one of them and uses the methods of `Tier`, the same on all ranks.
"""

from hybridps.tiers.none import NoTier
from hybridps.tiers.servers import FollowerTier, LeaderTier
from hybridps.tiers.tier import Tier, check_same_layout

__all__ = ["FollowerTier", "LeaderTier", "NoTier", "Tier", "check_same_layout"]
