"""The shares of GoSGD and push-sum: how much a group's weights count, in sums that conserve the whole.

At the start each of n groups has 1/n. A push takes a part of the sender's share along, and the receiver adds it to its
own, so the shares of all groups, those under way included, sum to 1.
"""

from __future__ import annotations


class Shares:
    """The share of one group, and what of it is under way.

    What was sent and is not answered may be given up, and is the group's own again. If it was taken in all the same,
    the group owes it, and pays as soon as it can: its own share stays above 0.
    """

    def __init__(self, groups: int) -> None:
        self.own = 1 / groups
        self.owed = 0.0
        self._under_way: dict[tuple[int, int], float] = {}
        self._given_up: dict[tuple[int, int], float] = {}

    @property
    def under_way(self) -> float:
        """Sent and neither answered nor given up."""
        return sum(self._under_way.values())

    def give(self, peer: int, number: int, share: float) -> None:
        """A push with this share of the own has been sent."""
        self.own -= share
        self._under_way[peer, number] = share

    def was_taken(self, peer: int, number: int) -> None:
        """The peer has taken a push in."""
        if self._under_way.pop((peer, number), None) is None:
            self.owed += self._given_up.pop((peer, number), 0.0)
            self._pay()

    def was_declined(self, peer: int, number: int) -> None:
        """The peer has not taken a push in, and will not."""
        self.own += self._under_way.pop((peer, number), 0.0)
        self._given_up.pop((peer, number), None)
        self._pay()

    def give_up(self, peer: int, number: int) -> None:
        """A push has not been answered for long, and its share is taken back."""
        share = self._under_way.pop((peer, number), None)
        if share is not None:
            self._given_up[peer, number] = share
            self.own += share
            self._pay()

    def forget(self, peer: int, number: int) -> None:
        """A push that was given up will never be answered."""
        self._given_up.pop((peer, number), None)

    def receive(self, share: float) -> None:
        """Add the share of a push that was taken in."""
        self.own += share
        self._pay()

    def _pay(self) -> None:
        paid = min(self.owed, self.own / 2)
        self.own -= paid
        self.owed -= paid
