"""Memory of a group that its servers may work in, as the client keeps book of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from hybridps.memory import Place, place_of
from hybridps.ps import wire

Attach = Callable[[int, int, int, str, int], bool]
"""Offers a server, by number, a region: the region's number, descriptor, secret and size. Whether it is taken."""


class Offers:
    """Which memory was offered to which server; each is offered once."""

    def __init__(self, attach: Attach) -> None:
        self._attach = attach
        self._regions: dict[tuple[int, str], int | None] = {}

    def spots(self, server: int, arrays: Sequence[np.ndarray]) -> tuple[wire.Spot, ...]:
        """Where the server finds the arrays; none at all if it does not reach one of them."""
        spots = []
        for array in arrays:
            place = place_of(array)
            region = None if place is None else self._region(server, place)
            if place is None or region is None:
                return ()
            spots.append(wire.Spot(region, place.offset))
        return tuple(spots)

    def _region(self, server: int, place: Place) -> int | None:
        # A descriptor may be used again for other memory; a secret is not.
        known = server, place.secret
        if known not in self._regions:
            number = len(self._regions)
            taken = self._attach(server, number, place.descriptor, place.secret, place.nbytes)
            self._regions[known] = number if taken else None
        return self._regions[known]
