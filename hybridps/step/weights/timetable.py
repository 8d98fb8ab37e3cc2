"""The steps in which weights are averaged, where each exchange decides when a later one is due."""

from __future__ import annotations

import threading
from collections import deque

from hybridps.step.schedule import Schedule

AHEAD = 2
"""How many exchanges lie between one that decides a period and that period, so that the program need not wait."""


class Timetable:
    """All ranks of a group use the same steps, because they ask in the same steps and get the same periods.

    A step without an exchange costs nothing: no thread reads the weights, and no rank gets a message.
    """

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._next = 1
        """The step of the next exchange."""
        self._periods = deque([1] * AHEAD)
        """The decided numbers of steps between two exchanges, the oldest first."""
        self._told = threading.Event()

    def is_due(self, step: int) -> bool:
        """Return whether there is an exchange in this step. On the program's thread, which must then make the exchange.

        Waits for an earlier exchange to end, if the program is that far ahead. Raises the exception that has ended the
        communication thread.
        """
        if step < self._next:
            return False
        while not self._periods:
            self._told.clear()
            if not self._periods:
                self._schedule.wait_for(self._told)
        self._next = step + self._periods.popleft()
        return True

    def tell(self, period: int) -> None:
        """Note that an exchange has ended, and has decided on this period in steps. On the communication thread."""
        self._periods.append(period)
        self._told.set()
