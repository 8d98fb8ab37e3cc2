"""Groups that give no sign of life although they have not ended, for example because they are stopped."""

from __future__ import annotations

from collections import deque

from hybridps.live import Live
from hybridps.live.reading import silent_seconds
from hybridps.quantities import counted

LOST_TIMES = 3
"""A group is reported after so many times the seconds after which servers count it as lost."""


class SilentGroups:
    """Notices groups of which no worker writes its status any more. Otherwise, a worker of the group reports it."""

    def __init__(self, lost_seconds: float) -> None:
        self.news: deque[tuple[int, str]] = deque()
        """Groups, each with a message. Another thread takes them from the left, and knows which groups have ended."""
        self._lost_seconds = lost_seconds
        self._silent: set[int] = set()

    def look(self, before: Live, now: Live) -> None:
        """Note the groups that have been silent for too long."""
        for number, workers in now.groups.items():
            seconds = min(silent_seconds(now.workers[each.worker], len(now.workers)) for each in workers)
            if seconds < LOST_TIMES * self._lost_seconds:
                self._silent.discard(number)
            elif number not in self._silent:
                self._silent.add(number)
                first = workers[0]
                who = f"{counted(len(workers), 'worker')}; worker {first.worker} is process {first.pid} on {first.host}"
                told = (
                    f"group {number} gives no sign of life for {seconds:.0f} s, and the launch waits for it: are its "
                    f"processes stopped ({who})?"
                )
                self.news.append((number, told))

    def close(self) -> None:
        """Do nothing: there is nothing to release."""
