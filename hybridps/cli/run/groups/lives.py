"""The lives of groups: which of those that died are restarted, and how often. Pure."""

from __future__ import annotations

from hybridps.config import Settings
from hybridps.errors import LATE, MISUSED, ConfigError
from hybridps.progress import ALONE


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

    `in_step`: the groups train in step, so that one that is restarted alone needs the weights of another one. Unless
    their script hands these over, all groups are restarted when one dies, in a new job. The groups say both (`learn`).
    All are also restarted when a restarted group ends with `LATE`.
    """

    def __init__(self, groups: int, restarts: int, in_step: bool = False) -> None:
        self.of = [0] * groups
        """The life of each group: how often it was restarted."""
        self.in_step = in_step
        self._hands_over = False
        self._was_late = False
        self.due: list[int] = []
        """The groups that are to be restarted."""
        self.together = False
        """Whether these are all groups, because one of them could not be restarted alone."""
        self._restarts = restarts
        self._used = 0
        self._alone: set[int] = set()
        """The groups that were restarted alone, since all were restarted together."""

    def learn(self, how: str) -> None:
        """Take in how the groups say that they are restarted: they train in step, and may hand over the weights."""
        self.in_step, self._hands_over = True, self._hands_over or how == ALONE

    def failed(self, group: int, status: int, others_train: bool = True) -> str:
        """Note that a group has failed. Return what the launcher says of its restart; empty if it is not restarted.

        `others_train`: some other group runs, and so may have the weights.
        """
        if group in self.due:
            return "all groups are started again"
        counted = status == LATE and group in self._alone
        if status == MISUSED or not (counted or self._used < self._restarts):
            return ""
        self._was_late |= status == LATE
        self.together |= self._was_late or (self.in_step and not (self._hands_over and others_train))
        self._used += not counted
        self.due = [*range(len(self.of))] if self.together else [*self.due, group]
        what = "all groups are started again" if self.together and len(self.of) > 1 else "started again"
        return f"{what}, {self._used} of {self._restarts}"

    def begin(self) -> list[int]:
        """Begin the next life of each group that is due, and return these groups. They are no longer due."""
        due, self.due = self.due, []
        self._alone = set() if self.together else self._alone | {*due}
        self.together = False
        self._was_late &= not self._hands_over
        for group in due:
            self.of[group] += 1
        return due
