"""Where a training script continues: at the beginning, or, if its group was restarted, where its job is."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from types import FrameType
from typing import NamedTuple

from hybridps.config import load_settings


class Resume(NamedTuple):
    """Where a script continues. In the first life of its group, that is the beginning."""

    life: int = 0
    """How often the group was restarted."""
    epoch: float = 0.0
    """The epochs that the job had done by then, as its scripts reported (`report_progress`)."""
    step: int = 0
    """The steps that the job had done by then; 0 if no script reports them."""


class Notice:
    """Whether this process was told that its group must leave. One for each process, as signals are."""

    def __init__(self) -> None:
        self.given = False
        """Whether this process was told."""
        self.agreed = False
        """Whether all ranks of the group leave after this step."""
        self._forking = threading.local()

    def listen(self, seconds: float | None) -> None:
        """Take SIGUSR1, and the first SIGTERM, as notice, unless `seconds` is None. Works in the main thread only."""
        if seconds is not None:
            with suppress(ValueError):
                signal.signal(signal.SIGUSR1, self._hear)
                signal.signal(signal.SIGTERM, self._hear)
                os.register_at_fork(
                    before=self._hold_signals,
                    after_in_parent=self._release_signals,
                    after_in_child=self._leave_to_parent,
                )

    def _hold_signals(self) -> None:
        """Let signals wait while a process is forked, because Python forgets those that its child gets meanwhile."""
        self._forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGUSR1, signal.SIGTERM))

    def _release_signals(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._forking.mask)

    def _leave_to_parent(self) -> None:
        """Take no notice in a forked process, such as a worker of a DataLoader, which its parent ends by SIGTERM.

        It ignores SIGUSR1: `mpirun` sends that signal to the whole process group of a rank, which needs its processes
        until it leaves.
        """
        for number, handler in ((signal.SIGUSR1, signal.SIG_IGN), (signal.SIGTERM, signal.SIG_DFL)):
            if signal.getsignal(number) == self._hear:
                signal.signal(number, handler)
        self._release_signals()

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self.given = True
        if number == signal.SIGTERM:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


notice = Notice()


def leaving() -> bool:
    """Return whether this group must leave the job now. If so, end the training, as after the last step.

    It is true on all ranks of the group after the same step, soon after one of them was told, by `hybridps run
    --notice-seconds` or by SIGTERM if the setting `notice_seconds` is given. Elastic SGD has then averaged the weights
    once more.
    """
    return notice.agreed


def resume() -> Resume:
    """Return where this script continues, as `hybridps run --restarts` tells the groups that it restarts.

    With `life` 0, or without that launcher, start at the beginning. With a later life and an `epoch`, the other groups
    are training and have done that many epochs: continue there. The group gets its weights from the servers when it
    joins them, or from the other groups if they gossip. With a later life and epoch 0, all groups begin anew: continue
    from a checkpoint, if there is one. Raises ConfigError for settings that cannot be used.
    """
    settings = load_settings()
    return Resume(settings.life, settings.resume_epoch, settings.resume_step)
