"""The steps in which weights are averaged, where each exchange decides when a later one is due."""

from __future__ import annotations

import threading
from collections import deque

from hybridps.step.schedule import Schedule

AHEAD = 2
"""Exchanges between one that decides and the one that it decides the period after: that the program need not wait."""


class Timetable:
    """All ranks of a group come to the same steps, as they ask in the same steps and are told the same periods.

    A step without an exchange costs nothing: nobody looks at the weights, and no rank is told.
    """

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._next = 1
        """The step of the next exchange."""
        self._periods = deque([1] * AHEAD)
        """Steps between two exchanges, as they were decided: the oldest first."""
        self._told = threading.Event()

    def is_due(self, step: int) -> bool:
        """Whether there is an exchange in this step. On the program's thread, which makes the exchange then.

        Waits for an earlier exchange to end, if the program is so far ahead. Raises the exception that has ended the
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
        """An exchange has ended, and decides on so many steps. On the communication thread."""
        self._periods.append(period)
        self._told.set()
