"""The lives of groups: which of those that died are started again, and how often. Pure."""

from __future__ import annotations

from hybridps.config import Settings
from hybridps.errors import LATE, MISUSED, ConfigError


def check_restarts(restarts: int, groups: int, settings: Settings) -> int:
    """How often groups may be started again, as asked for. Raises ConfigError where that has no meaning."""
    if restarts < 0:
        raise ConfigError(f"--restarts {restarts} cannot be used: it must be 0 or more")
    if restarts and groups > 1 and settings.backend == "mxnet":
        raise ConfigError(
            f"--restarts {restarts} has no meaning with MXNet's servers, at which a group that comes back cannot "
            "register again: use the backend hybridps, or leave it out"
        )
    return restarts


class Lives:
    """The lives of the groups, and which groups are to be started again, at most so many times in all (`restarts`).

    `together`: a group cannot join the others again, so all are started again when one dies. Else that is found out
    when one comes back and ends with `LATE`.
    """

    def __init__(self, groups: int, restarts: int, together: bool = False) -> None:
        self.of = [0] * groups
        """The life of each group: how often it was started again."""
        self.together = together
        self.due: list[int] = []
        """Groups that are to be started again."""
        self._restarts = restarts
        self._used = 0
        self._alone: set[int] = set()
        """Groups that were started again since all were."""

    def failed(self, group: int, status: int) -> str:
        """A group has ended with a status other than 0. What is to be said of its restart; empty if there is none."""
        if group in self.due:
            return "all groups are started again"
        counted = status == LATE and group in self._alone
        if status == MISUSED or not (counted or self._used < self._restarts):
            return ""
        self.together |= status == LATE and len(self.of) > 1
        self._used += not counted
        self.due = [*range(len(self.of))] if self.together else [*self.due, group]
        what = "all groups are started again" if self.together and len(self.of) > 1 else "started again"
        return f"{what}, {self._used} of {self._restarts}"

    def begin(self) -> list[int]:
        """The groups that are due, each for its next life. They are due no more."""
        due, self.due = self.due, []
        self._alone = set() if self.together else self._alone | {*due}
        for group in due:
            self.of[group] += 1
        return due
