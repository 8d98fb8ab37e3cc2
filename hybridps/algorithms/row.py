"""A row of an algorithm's table: what goes over its tier, when, and what happens to it there."""

from __future__ import annotations

from typing import Literal

import msgspec

from hybridps.codecs import CodecSpec
from hybridps.ps.clocks import Clock
from hybridps.ps.rules import AnyRule


class EverySteps(msgspec.Struct, frozen=True, tag="every-steps"):
    """A trigger: communicate every so many steps, but not before the first one."""

    steps: int

    def due(self, step: int) -> bool:
        """Whether the algorithm communicates before the local update of this step (0, 1, ...).

        >>> [step for step in range(10) if EverySteps(4).due(step)]
        [4, 8]
        """
        return step > 0 and step % self.steps == 0


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What a group exchanges with others through its tier. All ranks and groups of a job have the same."""

    sends: Literal["gradients", "weights"]
    """What the group contributes."""
    holds: Literal["gradients", "weights"]
    """What the centre of the table is."""
    trigger: EverySteps = EverySteps(1)
    rule: AnyRule
    clock: Clock
    codec: CodecSpec = "exact"
