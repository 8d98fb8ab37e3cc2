"""What a group knows about the other groups: their lives, signs of life, and the barriers that they have reached."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from hybridps.config import Settings


@dataclass
class Peer:
    """What is known about one other group."""

    session: int = 0
    """When its life began; 0 until its first letter arrives."""
    left: bool = False
    arrived: int = 0
    """The number of barriers that it has reached."""
    has_returned: bool = False
    """Whether this group knows an earlier life of it."""
    told: int | None = None
    """The number of barriers that it has passed, if it knows an earlier life of this group, and else 0. None until it
    has answered."""
    asked_at: float | None = None
    """When it was asked for a sign of life that has not arrived."""
    pinged_at: float = float("-inf")

    def ask(self) -> None:
        """Note that it is asked for a sign of life now."""
        self.pinged_at = time.monotonic()
        self.asked_at = self.pinged_at if self.asked_at is None else self.asked_at


class Peers(dict[int, Peer]):
    """All other groups by number. The caller guards it against other threads."""

    def __init__(self, rank: int, size: int, settings: Settings) -> None:
        """`rank`: the number of this group among `size` groups."""
        super().__init__({peer: Peer() for peer in range(size) if peer != rank})
        self.lost_seconds = settings.lost_seconds
        self.reached = self.passed = 0
        """The numbers of barriers that this group has reached and passed."""
        self._size = size
        self._beat_seconds = min(settings.heartbeat_seconds, settings.lost_seconds / 4)

    def begin_life(self, peer: int, session: int) -> Peer:
        """Forget what is known about a group, because another life of it has begun."""
        self[peer] = Peer(session, has_returned=self[peer].session > 0)
        return self[peer]

    def is_there(self, peer: int) -> bool:
        """Return whether a group gives signs of life and has not ended."""
        known = self[peer]
        return bool(known.session) and not known.left and not self.is_silent(known)

    def is_missing(self, peer: int, since: float) -> bool:
        """Return whether waiting for a group is pointless: it has ended, is silent, or did not start after `since`."""
        known = self[peer]
        if not known.session:  # groups may take as long to start as with servers
            return time.monotonic() - since > 3 * self.lost_seconds
        return known.left or self.is_silent(known)

    def passed_by_others(self) -> int:
        """Return the number of barriers that the others have passed, as they have told this group."""
        return max((known.told or 0 for known in self.values()), default=0)

    def is_ahead(self, peer: int) -> bool:
        """Return whether a group has reached a later barrier than the one that this group comes to next.

        It has passed that one while this group was silent or not there. It may wait for this group now, and then
        answers nothing before this group comes.
        """
        return self[peer].arrived > (self.reached or self.passed_by_others()) + 1

    def is_silent(self, known: Peer) -> bool:
        """Return whether a group has not answered for so long that it counts as lost."""
        return known.asked_at is not None and time.monotonic() - known.asked_at > self.lost_seconds

    def silences(self) -> list[float]:
        """Return for how many seconds each group has not answered; 0 for those that have answered or ended."""
        now, asked = time.monotonic(), {peer: known.asked_at for peer, known in self.items() if not known.left}
        return [0.0 if (since := asked.get(peer)) is None else now - since for peer in range(self._size)]

    def to_ask(self) -> Iterator[int]:
        """Yield the groups to ask for a sign of life now.

        A group that answers is asked regularly. One that does not answer is asked seldom, because letters may wait for
        it already.
        """
        now = time.monotonic()
        for peer, known in self.items():
            pause = self._beat_seconds if known.asked_at is None else self.lost_seconds / 2
            if not known.left and now > known.pinged_at + pause:
                yield peer
