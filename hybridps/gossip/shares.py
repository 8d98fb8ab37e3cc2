"""The shares of GoSGD and push-sum: how much a group's weights count. Their total is conserved.

At the start, each of n groups has 1/n. A push takes a part of the sender's share, and the receiver adds it to its own.
The shares of all groups, including those under way, therefore sum to 1.
"""

from __future__ import annotations


class Shares:
    """The share of one group, and the parts of it that are under way.

    A push without an answer may be given up; its share is then the group's own again. If the push was taken in
    nevertheless, the group owes that share, and pays as soon as it can: its own share stays above 0.
    """

    def __init__(self, groups: int) -> None:
        self.own = 1 / groups
        self.owed = 0.0
        self._under_way: dict[tuple[int, int], float] = {}
        self._given_up: dict[tuple[int, int], float] = {}

    @property
    def under_way(self) -> float:
        """The sum of the shares that were sent and neither answered nor given up."""
        return sum(self._under_way.values())

    def give(self, peer: int, number: int, share: float) -> None:
        """Note that a push with this part of the own share was sent."""
        self.own -= share
        self._under_way[peer, number] = share

    def was_taken(self, peer: int, number: int) -> None:
        """Note that the peer has taken in a push."""
        if self._under_way.pop((peer, number), None) is None:
            self.owed += self._given_up.pop((peer, number), 0.0)
            self._pay()

    def was_declined(self, peer: int, number: int) -> None:
        """Note that the peer has not taken in a push, and will not."""
        self.own += self._under_way.pop((peer, number), 0.0)
        self._given_up.pop((peer, number), None)
        self._pay()

    def give_up(self, peer: int, number: int) -> None:
        """Take back the share of a push that has not been answered for a long time."""
        share = self._under_way.pop((peer, number), None)
        if share is not None:
            self._given_up[peer, number] = share
            self.own += share
            self._pay()

    def forget(self, peer: int, number: int) -> None:
        """Note that a push that was given up will never be answered."""
        self._given_up.pop((peer, number), None)

    def receive(self, share: float) -> None:
        """Add the share of a push that was taken in."""
        self.own += share
        self._pay()

    def _pay(self) -> None:
        paid = min(self.owed, self.own / 2)
        self.own -= paid
        self.owed -= paid
