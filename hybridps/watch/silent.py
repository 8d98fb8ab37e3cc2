"""Groups that give no sign of life although they have not ended, for example because they are stopped."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from hybridps.live import Live, WorkerStatus
from hybridps.quantities import counted

LOST_TIMES = 4
"""A group is reported after so many times the seconds after which servers count it as lost."""

LONGEST_LOOK_SECONDS = 2.0
"""The time between two looks counts as at most this: after a longer one, this process was stopped too."""


class SilentGroups:
    """Notices groups of which no worker writes its status any more. Otherwise, a worker of the group reports it."""

    def __init__(self, lost_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.news: deque[str] = deque()
        """Messages. Another thread takes them from the left."""
        self._limit_seconds = LOST_TIMES * lost_seconds
        self._clock = clock
        self._last = clock()
        self._watched_seconds = 0.0
        self._latest: dict[int, tuple[tuple[float, float], float]] = {}
        """For each worker, which status was seen last, and when it was new, in watched seconds."""
        self._silent: set[int] = set()

    def look(self, before: Live, now: Live) -> None:
        """Note the groups that have been silent for too long."""
        last, self._last = self._last, self._clock()
        self._watched_seconds += min(self._last - last, LONGEST_LOOK_SECONDS)
        lives = {each.number: each.restarts for each in now.launch.status.groups if each.running} if now.launch else {}
        for number, workers in now.groups.items():
            seconds = min(map(self._silent_seconds, workers))
            if seconds < self._limit_seconds or workers[0].life != lives.get(number):
                self._silent.discard(number)
            elif number not in self._silent:
                self._silent.add(number)
                first = workers[0]
                who = f"{counted(len(workers), 'worker')}; worker {first.worker} is process {first.pid} on {first.host}"
                self.news.append(
                    f"group {number} has given no sign of life for {seconds:.0f} s, and the launch waits for it: are "
                    f"its processes stopped ({who})?"
                )

    def _silent_seconds(self, status: WorkerStatus) -> float:
        """Return for how long this status has been the worker's latest one; 0 if the worker has ended."""
        which = status.started_at, status.seconds
        known, since = self._latest.get(status.worker, (None, 0.0))
        if known != which:
            since = self._watched_seconds
            self._latest[status.worker] = which, since
        return 0.0 if status.ended else self._watched_seconds - since

    def close(self) -> None:
        """Do nothing: there is nothing to release."""
