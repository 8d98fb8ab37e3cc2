"""Groups that give no sign of life, or do no steps, although they have not ended: they are stopped, or hang."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence

from hybridps.live import Live, WorkerStatus
from hybridps.quantities import counted

IDLE_TIMES = 1.25
"""A group is reported as idle after so many times the deadline, at which groups that wait for others end themselves."""

LOST_TIMES = 4
"""A group is reported after so many times the seconds after which servers count it as lost."""

LONGEST_LOOK_SECONDS = 2.0
"""The time between two looks counts as at most this: after a longer one, this process was stopped too."""


class SilentGroups:
    """Notices groups of which no worker writes its status any more, or whose programs do no step for long. If other
    workers wait for such a worker, they report it too.
    """

    def __init__(
        self, lost_seconds: float, deadline_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.news: deque[str] = deque()
        """Messages. Another thread takes them from the left."""
        self._limit_seconds = LOST_TIMES * lost_seconds
        self._clock = clock
        self._last = clock()
        self._watched_seconds = 0.0
        self._idle_seconds = IDLE_TIMES * deadline_seconds
        self._latest: dict[tuple[int, str], tuple[tuple[float, float], float]] = {}
        """For each worker and kind of progress, which was seen last, and when it was new, in watched seconds."""
        self._told: dict[int, str] = {}
        """What was reported of a group that has not gone on since."""

    def look(self, before: Live, now: Live) -> None:
        """Note the groups that have been silent for too long."""
        last, self._last = self._last, self._clock()
        self._watched_seconds += min(self._last - last, LONGEST_LOOK_SECONDS)
        lives = {each.number: each.restarts for each in now.launch.status.groups if each.running} if now.launch else {}
        for number, workers in now.groups.items():
            silent = min(self._seconds_without(status, "status", status.seconds) for status in workers)
            idle = min(self._seconds_without(status, "steps", status.steps) for status in workers)
            told = ""
            if workers[0].life == lives.get(number):
                told = "silent" if silent >= self._limit_seconds else "idle" if idle >= self._idle_seconds else ""
            if told and told != self._told.get(number):
                self.news.append(_silent(workers, silent) if told == "silent" else _idle(workers, idle))
            self._told[number] = told

    def _seconds_without(self, status: WorkerStatus, kind: str, progress: float) -> float:
        """Return for how long a worker's progress has been the latest one; 0 if the worker has ended."""
        which = status.started_at, progress
        known, since = self._latest.get((status.worker, kind), (None, 0.0))
        if known != which:
            since = self._watched_seconds
            self._latest[status.worker, kind] = which, since
        return 0.0 if status.ended else self._watched_seconds - since

    def close(self) -> None:
        """Do nothing: there is nothing to release."""


def _silent(workers: Sequence[WorkerStatus], seconds: float) -> str:
    return (
        f"group {workers[0].group} has given no sign of life for {seconds:.0f} s, and the launch waits for it: are its "
        f"processes stopped ({_names(workers)})?"
    )


def _idle(workers: Sequence[WorkerStatus], seconds: float) -> str:
    return (
        f"group {workers[0].group} has done no step for {seconds:.0f} s, and the launch waits for it: does its program "
        f"hang ({_names(workers)})?"
    )


def _names(workers: Sequence[WorkerStatus]) -> str:
    first = workers[0]
    return f"{counted(len(workers), 'worker')}; worker {first.worker} is process {first.pid} on {first.host}"
