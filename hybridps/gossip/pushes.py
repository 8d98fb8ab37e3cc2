"""Groups that push their weights to others, with a share that says how much the weights count."""

from __future__ import annotations

import numpy as np

from hybridps.gossip.exchanges import Exchange, Request
from hybridps.gossip.inbox import Incoming
from hybridps.gossip.partners import Partners
from hybridps.gossip.partnership import Partnership
from hybridps.gossip.shares import Shares
from hybridps.gossip.topologies import Peers
from hybridps.memory import Layout


class PushExchange(Exchange):
    """GoSGD and stochastic gradient push: weights are sent with a share, and the sender does not wait.

    A group with share a sends (w, a / (k + 1)) to k partners, and keeps as much. A receiver computes

        w_r <- (a_r w_r + a_s w_s) / (a_r + a_s),    a_r <- a_r + a_s.
    """

    def __init__(self, partners: Partners, table: str, layout: Layout, partnership: Partnership, late: bool) -> None:
        super().__init__(partners, table, layout, partnership, late)
        self.shares = Shares(partners.size)

    def _send(self, peers: Peers, start: int, stop: int, weights: np.ndarray) -> int:
        share, sent = self.shares.own / (len(peers) + 1), 0
        for peer in peers:
            if self._ask(peer, "push", start, stop, weights[start:stop], share):
                self.shares.give(peer, self._number, share)
                sent += 1
        return sent

    def _take_request(self, incoming: Incoming, weights: np.ndarray) -> bool | None:
        sender, letter, values = incoming
        if letter.kind != "push" or values is None or not letter.share:
            return super()._take_request(incoming, weights)
        span = weights[letter.start : letter.stop]
        factor = letter.share / (self.shares.own + letter.share)
        difference = self._difference(values, span, factor)
        if difference is None:
            return False if self._post(sender, "decline", letter.number) else None
        if not self._post(sender, "taken", letter.number):
            return None
        self.shares.receive(letter.share)
        np.add(span, difference, out=span)
        self._note(letter.start, letter.stop, span, difference, 1 / factor)
        return True

    def _take_answer(self, incoming: Incoming, request: Request, weights: np.ndarray) -> bool:
        if incoming.letter.kind == "taken":
            self.shares.was_taken(incoming.sender, incoming.letter.number)
        elif incoming.letter.kind in ("decline", "late"):
            self.shares.was_declined(incoming.sender, incoming.letter.number)
        return super()._take_answer(incoming, request, weights)

    def _was_given_up(self, number: int, request: Request) -> None:
        self.shares.give_up(request.peer, number)

    def _was_lost(self, number: int, request: Request) -> None:
        self.shares.forget(request.peer, number)


def make_exchange(partners: Partners, table: str, layout: Layout, partnership: Partnership, late: bool) -> Exchange:
    """Make the exchange that a partnership describes."""
    kind = PushExchange if partnership.exchange == "push" else Exchange
    return kind(partners, table, layout, partnership, late)
