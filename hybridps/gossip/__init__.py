"""Gossip: groups that average with each other, without servers.

A topology says whom a group sends to; `Partners` are the other groups as its leader sees them, over a `Mail`; an
`Exchange` is what it does about one table. The tier `hybridps.tiers.GossipTier` puts these together. Sockets are opened
by `SocketMail` alone (`socket_mail.py`), which is not imported here.
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
