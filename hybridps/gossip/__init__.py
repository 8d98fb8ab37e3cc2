"""Gossip: groups that average with each other, without servers.

A topology says to whom a group sends. `Partners` are the other groups as its leader sees them, over a `Mail`. An
`Exchange` is what the leader does about one table. The tier `hybridps.tiers.GossipTier` puts these together. Only
`SocketMail` (`socket_mail.py`) opens sockets; it is not imported here.
"""

from hybridps.gossip.exchanges import Exchange, Span
from hybridps.gossip.mail import Mail
from hybridps.gossip.partners import Partners
from hybridps.gossip.partnership import PartnerChoice, Partnership
from hybridps.gossip.pushes import PushExchange, make_exchange
from hybridps.gossip.shares import Shares
from hybridps.gossip.topologies import Topology, parse

__all__ = [
    "PartnerChoice",
    "Exchange",
    "Mail",
    "Partners",
    "Partnership",
    "PushExchange",
    "Shares",
    "Span",
    "Topology",
    "make_exchange",
    "parse",
]
