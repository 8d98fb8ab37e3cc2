"""Tiers: where an exchange goes from a group.

`NoTier` goes nowhere, for one group without servers. `ServersTier` is one rank of a group at the parameter servers. An
algorithm is given one of them and uses the methods of `Tier`, the same on all ranks.
"""

from hybridps.tiers.none import NoTier
from hybridps.tiers.servers import ServersTier
from hybridps.tiers.tier import Tier, check_same_layout

__all__ = ["NoTier", "ServersTier", "Tier", "check_same_layout"]
