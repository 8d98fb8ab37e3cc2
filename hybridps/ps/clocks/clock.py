"""The clocks, as groups agree on them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import msgspec
from msgspec import Meta

from hybridps.ps.clocks.free import FreeRounds
from hybridps.ps.clocks.rounds import Rounds
from hybridps.ps.clocks.stale import StaleRounds
from hybridps.ps.clocks.synchronous import SynchronousRounds


class BulkSynchronous(msgspec.Struct, frozen=True, tag="bulk-synchronous", forbid_unknown_fields=True):
    """A round has one value of every member, element by element: members may cut a chunk into different parts.

    What a group brought before it left stays in the round. A group that joins later waits until no round
    is under way: so it enters no round that has its earlier value, nor the second half of a step.
    """

    def start(self, groups: Iterable[int]) -> Rounds:
        return SynchronousRounds(groups)


class BoundedStale(msgspec.Struct, frozen=True, tag="bounded-stale", forbid_unknown_fields=True):
    """Every value is a round of its own. A group is answered when no member is more than `bound` values behind it.

    Values are counted for each element, so members may cut a chunk into different parts. A group that joins begins
    where the slowest member is; if one leaves, the others no longer wait for it. (Stale synchronous parallel: Ho et
    al., 2013.)
    """

    bound: Annotated[int, Meta(ge=0, le=1 << 30)] = 0

    def start(self, groups: Iterable[int]) -> Rounds:
        return StaleRounds(groups, self.bound)


class FreeRunning(msgspec.Struct, frozen=True, tag="free-running", forbid_unknown_fields=True):
    """Every value is a round of its own, and answered at once."""

    def start(self, groups: Iterable[int]) -> Rounds:
        return FreeRounds(groups)


Clock = BulkSynchronous | BoundedStale | FreeRunning
