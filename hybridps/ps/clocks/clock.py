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


class BulkSynchronous(
    msgspec.Struct,
    frozen=True,
    tag="bulk-synchronous",
    forbid_unknown_fields=True,
    omit_defaults=True,
    repr_omit_defaults=True,
):
    """A round has one contribution of every member, element by element. Members may cut a chunk into different parts.

    The contribution of a group that leaves stays in the round. A group that joins later waits until no round is under
    way, so that it enters neither a round that has an earlier contribution of its own nor the second half of a step.

    `equally`: groups must do the same number of rounds. If one has come to the end of its training, a further round of
    the others is an error, because it lacks a contribution although no group was lost.
    """

    equally: bool = False

    def start(self, groups: Iterable[int]) -> Rounds:
        return SynchronousRounds(groups, self.equally)


class BoundedStale(msgspec.Struct, frozen=True, tag="bounded-stale", forbid_unknown_fields=True):
    """Every contribution is a round. A group is answered when no member is more than `bound` contributions behind it.

    Contributions are counted for each element, so members may cut a chunk into different parts. A group that joins
    begins where the slowest member is. When a group leaves, the others no longer wait for it. (Stale synchronous
    parallel: Ho et al., 2013.)
    """

    bound: Annotated[int, Meta(ge=0, le=1 << 30)] = 0

    def start(self, groups: Iterable[int]) -> Rounds:
        return StaleRounds(groups, self.bound)


class FreeRunning(msgspec.Struct, frozen=True, tag="free-running", forbid_unknown_fields=True):
    """Every contribution is a round, and is answered at once."""

    def start(self, groups: Iterable[int]) -> Rounds:
        return FreeRounds(groups)


Clock = BulkSynchronous | BoundedStale | FreeRunning
