"""Where a training script goes on: at the beginning, or where its job is when its group is started again."""

from __future__ import annotations

import signal
from contextlib import suppress
from types import FrameType
from typing import NamedTuple

from hybridps.config import load_settings


class Resume(NamedTuple):
    """Where a script goes on. In the first life of its group that is the beginning."""

    life: int = 0
    """How often the group was started again."""
    epoch: float = 0.0
    """Epochs that the job had done by then, as its scripts had reported (`report_progress`)."""
    step: int = 0
    """The same in steps; 0 if no script reports them."""


class Notice:
    """Whether this process was told that its group is to leave. One for each process, as signals are."""

    def __init__(self) -> None:
        self.given = False
        """This process was told."""
        self.agreed = False
        """All ranks of the group leave after this step."""

    def listen(self, seconds: float | None) -> None:
        """Take SIGUSR1, and the first SIGTERM, as notice, if groups get any. Only in the main thread."""
        if seconds is not None:
            with suppress(ValueError):
                signal.signal(signal.SIGUSR1, self._hear)
                signal.signal(signal.SIGTERM, self._hear)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self.given = True
        if number == signal.SIGTERM:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


notice = Notice()


def leaving() -> bool:
    """Whether this group is to leave the job now: end the training, as after its last step.

    It is true on all ranks of the group after the same step, soon after one of them was told: by
    `hybridps run --notice-seconds`, or by SIGTERM where the setting `notice_seconds` is given. Elastic SGD has averaged
    the weights once more then.
    """
    return notice.agreed


def resume() -> Resume:
    """Where this script goes on, as `hybridps run --restarts` tells the groups that it starts again.

    With `life` 0, or without that launcher, at the beginning. With a later life and an `epoch`, the other groups train
    and have done so many epochs: go on there. The group gets its weights from the servers when it joins them, or from
    the other groups if they gossip. With a later life and epoch 0, all groups begin anew: go on from a checkpoint, if
    there is one. Raises ConfigError for settings that cannot be used.
    """
    settings = load_settings()
    return Resume(settings.life, settings.resume_epoch, settings.resume_step)
