"""What groups that gossip do with each other, and how a group chooses whom."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec
import numpy as np

from hybridps.gossip.topologies import Peers, Topology

_SLOWEST = 0.1
"""The slowest partner is chosen at least so often, compared with the fastest one."""


class Partnership(msgspec.Struct, frozen=True):
    """How groups gossip. All ranks and groups of a job have the same."""

    exchange: Literal["symmetric", "pull", "push"]
    """Both sides average; the one that asks averages; or each sends its weights with a share, and goes on."""
    topology: str
    seed: int = 0
    by_speed: bool = False
    """Choose among all neighbours, more often those whose answers come fast, rather than in turn."""


class PartnerChoice:
    """Whom group `rank` of `size` sends to, one sending after the other."""

    def __init__(self, partnership: Partnership, rank: int, size: int) -> None:
        self._topology = Topology(partnership.topology, partnership.seed)
        self._rank = rank
        self._size = size
        self._by_speed = partnership.by_speed
        self._neighbours = self._topology.neighbours(rank, size)
        self._random = np.random.default_rng((partnership.seed, rank))
        self._step = 0

    def next(self, may: Callable[[int], bool], seconds: Callable[[int], float | None]) -> Peers:
        """The partners of the next sending, all of which `may` be chosen; empty if there is none.

        `seconds`: that a partner takes to answer; None if that is not known.
        """
        if self._by_speed:
            return self._fast([peer for peer in self._neighbours if may(peer)], seconds)
        for _ in range(self._topology.period(self._size)):
            peers = self._topology.peers(self._step, self._rank, self._size)
            self._step += 1
            found = tuple(peer for peer in peers if may(peer))
            if found:
                return found
        return ()

    def _fast(self, peers: list[int], seconds: Callable[[int], float | None]) -> Peers:
        """One of these, with a chance that falls with the time it takes; those never measured count as the fastest."""
        if not peers:
            return ()
        measured = [seconds(peer) for peer in peers]
        fastest = max(1e-6, min((took for took in measured if took is not None), default=1.0))
        chances = np.array([max(_SLOWEST, fastest / max(fastest, took or fastest)) for took in measured])
        return (peers[int(self._random.choice(len(peers), p=chances / chances.sum()))],)
