"""Sum and mean: the servers only combine, and the groups update."""

from __future__ import annotations

from typing import ClassVar

from hybridps.compiled import compiled
from hybridps.memory import DTYPES, FLOATS
from hybridps.ps.clocks import BulkSynchronous
from hybridps.ps.rules.rule import Rule


class Sum(Rule, frozen=True, tag="sum"):
    """The sum of one contribution from each group. The centre is the last sum."""

    dtypes: ClassVar[tuple[str, ...]] = DTYPES
    clocks = (BulkSynchronous,)
    transparent = True
    centre_is_answer = True

    @staticmethod
    @compiled
    def update_(total, centre, state, numbers):  # type: ignore[no-untyped-def]
        return total


class Mean(Sum, frozen=True, tag="mean"):
    """The mean of the contributions of a round, over the groups that take part in it."""

    dtypes = FLOATS

    @staticmethod
    @compiled
    def update_(total, centre, state, numbers):  # type: ignore[no-untyped-def]
        for i in range(len(total)):
            total[i] = total[i] / numbers[0]
        return total
