"""How long to wait for something, from how long it took before (RFC 6298, Jacobson 1988). Pure."""

from __future__ import annotations

PATIENCE = 8.0
"""Times as long as an operation usually takes, at most: only then it is late."""


class Pace:
    """The time that one repeated operation takes, smoothed: mean, and mean deviation."""

    def __init__(self) -> None:
        self._mean: float | None = None
        self._deviation = 0.0

    def add(self, seconds: float) -> None:
        """It took so long."""
        if self._mean is None:
            self._mean, self._deviation = seconds, seconds / 2
            return
        self._deviation += (abs(seconds - self._mean) - self._deviation) / 4
        self._mean += (seconds - self._mean) / 8

    def deadline_seconds(self, least_seconds: float) -> float:
        """max(least_seconds, 8 (mean + 4 deviation)): what was set, or more if it is slower than was thought of."""
        usual = 0.0 if self._mean is None else self._mean + 4 * self._deviation
        return max(least_seconds, PATIENCE * usual)
