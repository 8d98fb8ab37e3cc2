"""Sum and mean: the servers only combine, and the groups update."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec
import numpy as np

from hybridps.compiled import compiled
from hybridps.memory import DTYPES
from hybridps.ps.clocks import BulkSynchronous, Clock
from hybridps.ps.rules.kernel import BLOCK, add_up_finite_, hand_out_


class Sum(msgspec.Struct, frozen=True, tag="sum", forbid_unknown_fields=True):
    """The sum of one value from each group; the centre is the last sum."""

    states: ClassVar[int] = 0
    dtypes: ClassVar[tuple[str, ...]] = DTYPES
    clocks: ClassVar[tuple[type[Clock], ...]] = (BulkSynchronous,)
    alone: ClassVar[bool] = False
    replaces: ClassVar[bool] = True

    def numbers(self, step: int, values: int) -> tuple[float, ...]:
        return ()

    def complete_(self, centre: np.ndarray, total: np.ndarray, state: Sequence[np.ndarray], numbers: Any) -> None:
        np.copyto(centre, total)

    @staticmethod
    @compiled
    def kernel_(sources, targets, centre, state, numbers, look):  # type: ignore[no-untyped-def]
        buffer = np.empty(BLOCK, centre.dtype)
        for start in range(0, centre.size, BLOCK):
            c = centre[start : start + BLOCK]
            total = buffer[: c.size]
            if not add_up_finite_(total, sources, start, look):
                return start
            for i in range(c.size):
                c[i] = total[i]
            hand_out_(total, targets, start)
        return centre.size

    def absorb_(self, values: np.ndarray, answer: np.ndarray) -> None:
        np.copyto(values, answer)

    def distance(self, values: np.ndarray, answer: np.ndarray) -> float:
        return float("nan")


class Mean(Sum, frozen=True, tag="mean", forbid_unknown_fields=True):
    """The mean of the values of a round: of those groups that take part in it."""

    def numbers(self, step: int, values: int) -> tuple[float, ...]:
        return (values,)

    def complete_(self, centre: np.ndarray, total: np.ndarray, state: Sequence[np.ndarray], numbers: Any) -> None:
        np.divide(total, numbers[0], out=total)
        np.copyto(centre, total)

    @staticmethod
    @compiled
    def kernel_(sources, targets, centre, state, numbers, look):  # type: ignore[no-untyped-def]
        (values,) = numbers
        buffer = np.empty(BLOCK, centre.dtype)
        for start in range(0, centre.size, BLOCK):
            c = centre[start : start + BLOCK]
            total = buffer[: c.size]
            if not add_up_finite_(total, sources, start, look):
                return start
            for i in range(c.size):
                c[i] = total[i] / values
            hand_out_(c, targets, start)
        return centre.size
