"""Sum and mean: the servers only combine, and the groups update."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from hybridps.compiled import compiled
from hybridps.memory import DTYPES
from hybridps.ps.clocks import BulkSynchronous, Clock
from hybridps.ps.rules.rule import NewValue


class Sum(NewValue, msgspec.Struct, frozen=True, tag="sum", forbid_unknown_fields=True):
    """The sum of one contribution from each group; the centre is the last sum."""

    states: ClassVar[int] = 0
    dtypes: ClassVar[tuple[str, ...]] = DTYPES
    clocks: ClassVar[tuple[type[Clock], ...]] = (BulkSynchronous,)
    separate: ClassVar[bool] = False
    transparent: ClassVar[bool] = True

    def numbers(self, step: int, contributions: int) -> tuple[float, ...]:
        return ()

    @staticmethod
    @compiled
    def update_(total, centre, state, numbers):  # type: ignore[no-untyped-def]
        for i in range(len(total)):
            centre[i] = total[i]
        return total


class Mean(Sum, frozen=True, tag="mean", forbid_unknown_fields=True):
    """The mean of the contributions of a round: of those groups that take part in it."""

    def numbers(self, step: int, contributions: int) -> tuple[float, ...]:
        return (contributions,)

    @staticmethod
    @compiled
    def update_(total, centre, state, numbers):  # type: ignore[no-untyped-def]
        for i in range(len(total)):
            centre[i] = total[i] / numbers[0]
        return centre
