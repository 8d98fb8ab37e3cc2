"""Groups that train again after a restart."""

from __future__ import annotations

from collections import deque

from hybridps.live import Live


class RestartedGroups:
    """Notices when the leader of a restarted group has done its first steps."""

    def __init__(self) -> None:
        self.news: deque[str] = deque()
        """Messages. Another thread takes them from the left."""
        self._lives: dict[int, int] = {}
        """The latest life of each group in which it was seen to train."""

    def look(self, before: Live, now: Live) -> None:
        """Note the groups that have begun to train since the last look."""
        for number, workers in now.groups.items():
            leader = workers[0]
            if leader.step_seconds is None or leader.life <= self._lives.get(number, 0):
                continue
            self._lives[number] = leader.life
            self.news.append(f"group {number} trains again")

    def close(self) -> None:
        """Do nothing: there is nothing to release."""
