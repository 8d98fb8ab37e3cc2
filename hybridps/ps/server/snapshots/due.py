"""When a server takes snapshots. Pure."""

from __future__ import annotations


class DueTimes:
    """Snapshots are due at multiples of `seconds` of the host's clock: servers whose clocks agree take them together.

    While they take longer than that, every second, fourth, ... one is left in: of two servers the slower one takes
    snapshots that the other one takes too. Times are seconds since 1970; `now` is when the server begins.
    """

    def __init__(self, seconds: float, now: float) -> None:
        self._seconds = seconds
        self._stride = 1
        """One of so many is taken, a power of two."""
        self._last = self._passed(now)

    def begin(self, now: float) -> int | None:
        """The number of the snapshot to begin now, which says when it was due in milliseconds; None if none is due."""
        due = self._passed(now)
        due -= due % self._stride
        if due <= self._last:
            return None
        self._last = due
        return int(due * self._seconds * 1000)

    def end(self, now: float) -> None:
        """The snapshot that was begun is over."""
        needed = 1 << (self._passed(now) - self._last).bit_length()
        self._stride = max(needed, self._stride // 2)

    def _passed(self, now: float) -> int:
        return int(now // self._seconds)
