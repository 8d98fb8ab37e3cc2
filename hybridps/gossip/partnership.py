"""How groups gossip, and how a group chooses its partners."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec
import numpy as np

from hybridps.gossip.topologies import Peers, Topology

_SLOWEST = 0.1
"""The smallest chance of a partner, relative to that of the fastest one."""


class Partnership(msgspec.Struct, frozen=True):
    """How groups gossip. All ranks and groups of a job have the same partnership."""

    exchange: Literal["symmetric", "pull", "push"]
    """'symmetric': both sides average. 'pull': the group that asks averages. 'push': each group sends its weights with
    a share and continues."""
    topology: str
    seed: int = 0
    by_speed: bool = False
    """Whether to choose among all neighbours at random, preferring those that answer fast, instead of in turn."""


class PartnerChoice:
    """Chooses to whom group `rank` of `size` groups sends next."""

    def __init__(self, partnership: Partnership, rank: int, size: int) -> None:
        self._topology = Topology(partnership.topology, partnership.seed)
        self._rank = rank
        self._size = size
        self._by_speed = partnership.by_speed
        self._neighbours = self._topology.neighbours(rank, size)
        self._random = np.random.default_rng((partnership.seed, rank))
        self._step = 0

    def next(self, may: Callable[[int], bool], seconds: Callable[[int], float | None]) -> Peers:
        """Return the partners of the next sending, among those that `may` be chosen; empty if there is none.

        `seconds`: returns how long a partner takes to answer; None if that is not known.
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
        """Choose one of these groups. Its chance falls with its time; unmeasured ones count as the fastest."""
        if not peers:
            return ()
        measured = [seconds(peer) for peer in peers]
        fastest = max(1e-6, min((took for took in measured if took is not None), default=1.0))
        chances = np.array([max(_SLOWEST, fastest / max(fastest, took or fastest)) for took in measured])
        return (peers[int(self._random.choice(len(peers), p=chances / chances.sum()))],)
