"""Where a training script goes on: at the beginning, or where its job is when its group is started again."""

from __future__ import annotations

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


def resume() -> Resume:
    """Where this script goes on, as `hybridps run --restarts` tells the groups that it starts again.

    With `life` 0, or without that launcher, at the beginning. With a later life and an `epoch`, the other groups train
    and have done so many epochs: go on there. The group gets its weights from the servers when it joins them, or from
    the other groups if they gossip. With a later life and epoch 0, all groups begin anew: go on from a checkpoint, if
    there is one. Raises ConfigError for settings that cannot be used.
    """
    settings = load_settings()
    return Resume(settings.life, settings.resume_epoch, settings.resume_step)
