"""The shared memory of a group that its servers may work in."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import numpy as np

from hybridps.ps import wire
from hybridps.ps.client.operations import Operation
from hybridps.ps.client.session import Session
from hybridps.shared_memory import Place, is_released, place_of


class Regions:
    """Knows which memory was offered to which server.

    Memory is offered once to each server, and withdrawn when this process has released it.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        session.offers_of = self._offers_of
        self._offers: dict[tuple[int, int, str], Operation] = {}
        """The offers, by server, descriptor and secret. A region has the number of the request that offered it."""

    def offsets(self, servers: Sequence[int], arrays: Sequence[np.ndarray]) -> dict[int, tuple[wire.RegionOffset, ...]]:
        """Return where each server finds the arrays, in their order, for the servers that reach all of them."""
        places = [place for place in map(place_of, arrays) if place is not None]
        if len(places) < len(arrays):
            return {}
        found = {}
        for server in servers:
            offers = [self._offer(server, place) for place in places]
            if all(offer.error is None for offer in offers):
                regions = [(offer.request, place.offset) for offer, place in zip(offers, places, strict=True)]
                found[server] = tuple(wire.RegionOffset(*each) for each in regions)
        return found

    def _offers_of(self, server: int) -> Iterator[wire.Attach]:
        """Yield the offers that a server has accepted."""
        for offer in [offer for (of, *_), offer in self._offers.items() if of == server and offer.error is None]:
            yield from (sent.message for sent in offer.sent if isinstance(sent.message, wire.Attach))

    def _offer(self, server: int, place: Place) -> Operation:
        """Return the answered offer of memory to a server. Its error says why the server does not reach the memory."""
        # A descriptor may be reused for other memory; a secret is not.
        known = server, place.descriptor, place.secret
        if known not in self._offers:
            for released in [each for each in self._offers if is_released(*each[1:])]:
                self._withdraw(self._offers.pop(released), released[0])
            what, memory = f"offer of memory to {self._session.addresses[server]}", (*known[1:], place.nbytes)
            offer = self._session.ask(what, [server], lambda n, _: wire.Attach(n, n, os.getpid(), *memory))
            self._session.finish(offer)
            self._offers[known] = offer
        return self._offers[known]

    def _withdraw(self, offer: Operation, server: int) -> None:
        if offer.error is None:
            self._session.ask("withdrawal of memory", [server], lambda n, _: wire.Detach(n, offer.request)).wait()
