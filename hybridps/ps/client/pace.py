"""How long to wait for an operation, from how long it took before (RFC 6298, Jacobson 1988). Pure."""

from __future__ import annotations

PATIENCE = 8.0
"""An operation is late after this many times its usual duration."""


class Pace:
    """The duration of a repeated operation, smoothed: mean, and mean deviation."""

    def __init__(self) -> None:
        self._mean: float | None = None
        self._deviation = 0.0

    def add(self, seconds: float) -> None:
        """The operation took so long."""
        if self._mean is None:
            self._mean, self._deviation = seconds, seconds / 2
            return
        self._deviation += (abs(seconds - self._mean) - self._deviation) / 4
        self._mean += (seconds - self._mean) / 8

    def deadline_seconds(self, least_seconds: float) -> float:
        """max(least_seconds, 8 (mean + 4 deviation)): the setting, or more if the operation is always slower."""
        usual = 0.0 if self._mean is None else self._mean + 4 * self._deviation
        return max(least_seconds, PATIENCE * usual)
