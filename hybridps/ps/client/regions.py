"""The shared memory of a group that its servers may work in."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np

from hybridps.memory import Place, is_released, place_of
from hybridps.ps import wire

Offer = Callable[[int, int, Place], bool]
"""Offers a server, by its number, memory as a region of that number. Returns whether the server works there."""

Withdraw = Callable[[int, int], None]
"""Tells a server, by its number, that a region is no longer used."""


class Regions:
    """Which memory was offered to which server. Each is offered once, and withdrawn when this process releases it."""

    def __init__(self, offer: Offer, withdraw: Withdraw) -> None:
        self._offer = offer
        self._withdraw = withdraw
        self._next = itertools.count()
        self._numbers: dict[tuple[int, str], int | None] = {}
        """By server and secret. None: the server does not reach it."""
        self._descriptors: dict[str, int] = {}

    def spots(self, servers: Sequence[int], arrays: Sequence[np.ndarray]) -> dict[int, tuple[wire.Spot, ...]]:
        """Where each server finds the arrays, in their order; without the servers that do not reach all of them."""
        places = [place_of(array) for array in arrays]
        found = [place for place in places if place is not None]
        if len(found) < len(places):
            return {}
        spots = {}
        for server in servers:
            numbers = [self._number(server, place) for place in found]
            if None not in numbers:
                spots[server] = tuple(
                    wire.Spot(number, place.offset)
                    for number, place in zip(numbers, found, strict=True)
                    if number is not None
                )
        return spots

    def _number(self, server: int, place: Place) -> int | None:
        # A descriptor may be used again for other memory; a secret is not.
        known = server, place.secret
        if known not in self._numbers:
            self._withdraw_released()
            number = next(self._next)
            self._numbers[known] = number if self._offer(server, number, place) else None
            self._descriptors[place.secret] = place.descriptor
        return self._numbers[known]

    def _withdraw_released(self) -> None:
        for server, secret in [*self._numbers]:
            if is_released(self._descriptors[secret], secret):
                number = self._numbers.pop((server, secret))
                if number is not None:
                    self._withdraw(server, number)
