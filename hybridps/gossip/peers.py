"""What a group knows of the other groups: their lives, their signs of life, and the barriers that they have reached."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from hybridps.config import Settings


@dataclass
class Peer:
    """Another group."""

    session: int = 0
    """When it began; 0 until the first letter arrives."""
    left: bool = False
    arrived: int = 0
    """Barriers that it has come to, counted as by this group."""
    barriers_before: int = 0
    """That this group had passed when the other one began: a later life counts its own anew."""
    asked_at: float | None = None
    """When it was asked for a sign of life that has not come."""
    pinged_at: float = float("-inf")

    def ask(self) -> None:
        """It is asked for a sign of life now."""
        self.pinged_at = time.monotonic()
        self.asked_at = self.pinged_at if self.asked_at is None else self.asked_at


class Peers(dict[int, Peer]):
    """All other groups by their numbers. The caller guards it against other threads."""

    def __init__(self, rank: int, size: int, settings: Settings) -> None:
        """`rank`: the number of this group among `size` groups."""
        super().__init__({peer: Peer() for peer in range(size) if peer != rank})
        self.lost_seconds = settings.lost_seconds
        self.passed = 0
        """Barriers that this group has passed."""
        self._size = size
        self._beat_seconds = min(settings.heartbeat_seconds, settings.lost_seconds / 4)

    def is_there(self, peer: int) -> bool:
        """Whether a group has given signs of life, also lately, and has not ended."""
        known = self[peer]
        return bool(known.session) and not known.left and not self.is_silent(known)

    def is_missing(self, peer: int, since: float) -> bool:
        """Whether there is no point in waiting, as was done since then: it has ended, is silent, or did not come."""
        known = self[peer]
        if not known.session:  # groups may take as long to start as at servers
            return time.monotonic() - since > 3 * self.lost_seconds
        return known.left or self.is_silent(known)

    def is_silent(self, known: Peer) -> bool:
        """Whether a group has not answered for so long that it counts as lost."""
        return known.asked_at is not None and time.monotonic() - known.asked_at > self.lost_seconds

    def silences(self) -> list[float]:
        """For how many seconds each group has not answered; 0 for those that have, or have ended."""
        now, asked = time.monotonic(), {peer: known.asked_at for peer, known in self.items() if not known.left}
        return [0.0 if (since := asked.get(peer)) is None else now - since for peer in range(self._size)]

    def to_ask(self) -> Iterator[int]:
        """The groups to ask for a sign of life now: each every now and then, and seldom one that does not answer, as
        letters may wait for it already."""
        now = time.monotonic()
        for peer, known in self.items():
            pause = self._beat_seconds if known.asked_at is None else self.lost_seconds / 2
            if not known.left and now > known.pinged_at + pause:
                yield peer
