"""Where the time of the communication thread goes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hybridps.events import Communicated, EventLog

INTERVAL_SECONDS = 0.1
"""The least time between two events. It is short because reports draw the traffic of runs that take seconds."""


class TimeSpent:
    """The seconds that the communication thread spends, summed over the steps and regularly written to the events."""

    def __init__(self, events: EventLog, payload_bytes: Callable[[], tuple[int, int]]) -> None:
        self.steps = 0
        """The number of steps whose sums were all made bucket by bucket."""
        self._events = events
        self._payload_bytes = payload_bytes
        self._seconds = {"group": 0.0, "exchange": 0.0, "exposed": 0.0}
        self._written = time.monotonic()

    @contextmanager
    def on(self, what: str) -> Iterator[None]:
        """Add the time in the context to `group` or `exchange`."""
        began = time.monotonic()
        yield
        self._seconds[what] += time.monotonic() - began

    def end_step(self, last_gradient: float) -> None:
        """Count a step with all its sums. `last_gradient`: when its last gradient arrived, on the monotonic clock."""
        now = time.monotonic()
        self.steps += 1
        self._seconds["exposed"] += now - last_gradient
        if now - self._written >= INTERVAL_SECONDS:
            self._written = now
            spent = {f"{activity}_seconds": seconds for activity, seconds in self._seconds.items()}
            sent, received = self._payload_bytes()
            self._events.emit(Communicated(self.steps, **spent, bytes_to_servers=sent, bytes_from_servers=received))
