"""How a group that was restarted, or that joins, takes part in a job under way.

If the groups train in step, it waits for a meeting with the others. Otherwise it takes their centre.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from hybridps.errors import DeadlineError, LateError
from hybridps.ps.model import Meeting

TRY_SECONDS = 1.0
"""How long one attempt to meet the other groups waits for them, so that the ranks of a group stay in touch."""


@dataclass
class Rejoining:
    """What all algorithms of a job know about it.

    `possible`: the groups can meet, as they are connected by servers of one rack. `announce` is called after the first
    meeting.
    """

    possible: bool = False
    waits: bool = False
    """Whether this group was restarted alone, and has not met the others yet."""
    done: bool = False
    """Whether this group has rejoined the others, and has what they had given it."""
    deadline_seconds: float = 0.0
    announce: Callable[[], None] | None = None
    takes_centre: bool = False
    """Whether this group was restarted, or joins, where groups do not train in step, and so begins with the centre."""
    trains: bool = False
    """Whether this group has exchanged something in its training."""

    @property
    def comes_late(self) -> bool:
        """Whether this group has come into a job under way, not in step, and has not trained yet."""
        return self.takes_centre and not self.trains

    @property
    def restarted(self) -> bool:
        """Whether this group was restarted alone."""
        return self.waits or self.done

    def meet(self, attempt: Callable[[], Meeting | None]) -> Meeting:
        """Attempt to meet the other groups until all have come. Call this on all ranks of the group, between two steps.

        A group that was restarted waits as long as the others train, so without a deadline. Raises DeadlineError if
        another group does not come, LateError for a group that was restarted when nobody is left that has trained, and
        SystemExit(0) if the others have finished their training meanwhile.
        """
        end = time.monotonic() + self.deadline_seconds
        while (meeting := attempt()) is None:
            if not self.waits and time.monotonic() > end:
                raise DeadlineError(
                    f"another group has not come to the end of its epoch within {self.deadline_seconds:g} s: all "
                    "groups must do the same number of steps; check what that group is doing, or raise "
                    "HYBRIDPS_DEADLINE_SECONDS"
                )
        if self.announce is not None:
            self.announce()  # not earlier: a group that dies before the first meeting would get nothing
            self.announce = None
        self.waits = False
        if meeting.joins and meeting.giver is None:
            if meeting.finished:
                raise SystemExit(0)
            raise LateError(
                "no group is left that has trained, so that nobody can give this one the weights: start all groups "
                "together, from a checkpoint"
            )
        self.done |= meeting.joins
        return meeting
