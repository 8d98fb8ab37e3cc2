"""Which ranks of a group share a node, and which ranks of different nodes form a lane."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Topology:
    """The nodes of a group, as seen by one of its ranks.

    Lane l joins the ranks that have number l on their nodes. Each lane carries its part of a node's data. There are as
    many lanes as the smallest node has ranks.
    """

    members: tuple[tuple[int, ...], ...]
    """The ranks of each node."""
    node: int
    """The number of this rank's node."""
    local: int
    """The number of this rank on its node."""

    @staticmethod
    def of(nodes: Sequence[int], rank: int) -> Topology:
        """Make the topology for `rank`. `nodes`: any number for each rank's node, in rank order.

        >>> Topology.of([7, 9, 7, 9, 9], rank=3)
        Topology(members=((0, 2), (1, 3, 4)), node=1, local=1)
        """
        names = sorted(set(nodes))
        members = tuple(tuple(r for r, other in enumerate(nodes) if other == name) for name in names)
        node = names.index(nodes[rank])
        return Topology(members, node, members[node].index(rank))

    @property
    def one_node(self) -> bool:
        return len(self.members) == 1

    @property
    def lanes(self) -> int:
        return min(len(ranks) for ranks in self.members)

    @property
    def peers(self) -> tuple[int, ...]:
        """The ranks of this rank's lane, in ascending order; empty without a lane."""
        return tuple(sorted(ranks[self.local] for ranks in self.members)) if self.local < self.lanes else ()

    @property
    def even(self) -> bool:
        """Whether all nodes have the same number of ranks."""
        return len({len(ranks) for ranks in self.members}) == 1

    def place_of(self, rank: int) -> tuple[int, int]:
        """Return the number of a rank's node, and the rank's number there."""
        node = next(node for node, ranks in enumerate(self.members) if rank in ranks)
        return node, self.members[node].index(rank)

    def in_lane(self, node: int) -> int:
        """Return the rank, counted within this rank's lane, of the lane's member on `node`; 0 without a lane."""
        return self.peers.index(self.members[node][self.local]) if self.peers else 0
