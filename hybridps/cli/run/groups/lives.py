"""The lives of groups: which of those that died are restarted, and how often. Pure."""

from __future__ import annotations

from hybridps.config import Settings
from hybridps.errors import LATE, MISUSED, ConfigError


def check_restarts(restarts: int, groups: int, settings: Settings) -> int:
    """Return how often groups may be restarted, as asked for. Raises ConfigError if that has no meaning."""
    if restarts < 0:
        raise ConfigError(f"--restarts {restarts} cannot be used: it must be 0 or more")
    if restarts and groups > 1 and settings.backend == "mxnet":
        raise ConfigError(
            f"--restarts {restarts} has no meaning with MXNet's servers, at which a group that comes back cannot "
            "register again: use the backend hybridps, or leave it out"
        )
    return restarts


class Lives:
    """The lives of the groups, and which groups are to be restarted, at most `restarts` times in total.

    `together`: a group cannot rejoin the job, so all groups are restarted when one dies, in a new job. Otherwise this
    becomes known when a restarted group ends with `LATE`.
    """

    def __init__(self, groups: int, restarts: int, together: bool = False) -> None:
        self.of = [0] * groups
        """The life of each group: how often it was restarted."""
        self.together = together
        self.due: list[int] = []
        """The groups that are to be restarted."""
        self._restarts = restarts
        self._used = 0
        self._alone: set[int] = set()
        """The groups that were restarted alone, since all were restarted together."""

    def failed(self, group: int, status: int) -> str:
        """Note that a group has failed. Return what the launcher says of its restart; empty if it is not restarted."""
        if group in self.due:
            return "all groups are started again"
        counted = status == LATE and group in self._alone
        if status == MISUSED or not (counted or self._used < self._restarts):
            return ""
        self.together |= status == LATE
        self._used += not counted
        self.due = [*range(len(self.of))] if self.together else [*self.due, group]
        what = "all groups are started again" if self.together and len(self.of) > 1 else "started again"
        return f"{what}, {self._used} of {self._restarts}"

    def begin(self) -> list[int]:
        """Begin the next life of each group that is due, and return these groups. They are no longer due."""
        due, self.due = self.due, []
        self._alone = set() if self.together else self._alone | {*due}
        for group in due:
            self.of[group] += 1
        return due
