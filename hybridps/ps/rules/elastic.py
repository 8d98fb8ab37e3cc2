"""Elastic averaging (Zhang, Choromanska, LeCun, 2015, arXiv 1412.6651), at arrival and in its synchronous form."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec
import numpy as np
from msgspec import Meta

from hybridps.compiled import compiled
from hybridps.memory import DTYPES
from hybridps.ps.clocks import BulkSynchronous, Clock, FreeRunning


class Elastic(msgspec.Struct, frozen=True, tag="elastic", forbid_unknown_fields=True):
    """d = alpha (w - centre); centre += d at the server (Elastic1), w -= d in the group (Elastic2).

    The answer is d: both sides use the same bits, and an exchange conserves w + centre. d is computed in at least
    float32, so that alpha is not rounded to float16, and then stored in the table's dtype.
    """

    states: ClassVar[int] = 0
    dtypes: ClassVar[tuple[str, ...]] = DTYPES
    clocks: ClassVar[tuple[type[Clock], ...]] = (FreeRunning,)
    separate: ClassVar[bool] = True
    answer_is_new_value: ClassVar[bool] = False
    transparent: ClassVar[bool] = False

    alpha: Annotated[float, Meta(ge=0, le=1)]

    def numbers(self, step: int, contributions: int) -> tuple[float, ...]:
        return (self.alpha,)

    @staticmethod
    @compiled
    def update_(total, centre, state, numbers):  # type: ignore[no-untyped-def]
        for i in range(len(total)):
            total[i] = (total[i] - centre[i]) * numbers[0]
            centre[i] += total[i]
        return total

    def apply_answer_(self, values: np.ndarray, answer: np.ndarray) -> None:
        np.subtract(values, answer, out=values)

    def distance(self, values: np.ndarray, answer: np.ndarray) -> float:
        size = float(np.linalg.norm(values))
        return float(np.linalg.norm(answer)) / (self.alpha * size) if self.alpha * size else float("nan")


class ElasticTogether(Elastic, frozen=True, tag="elastic-together", forbid_unknown_fields=True):
    """The synchronous form, for the values w_i of C groups:

    centre <- centre + alpha sum_i (w_i - centre) = (1 - C alpha) centre + C alpha mean(w)
    w_i <- w_i - alpha (w_i - centre)

    Both sides use the centre as it was before the round; it is the answer. Stable for C alpha <= 1.
    """

    states: ClassVar[int] = 1
    """The answer, in case a group asks for it again."""

    clocks: ClassVar[tuple[type[Clock], ...]] = (BulkSynchronous,)
    separate: ClassVar[bool] = False

    def numbers(self, step: int, contributions: int) -> tuple[float, ...]:
        return self.alpha, contributions

    @staticmethod
    @compiled
    def update_(total, centre, state, numbers):  # type: ignore[no-untyped-def]
        alpha, contributions = numbers
        before = state[0]
        for i in range(len(total)):
            before[i] = centre[i]
            centre[i] += (total[i] - before[i] * contributions) * alpha
        return before

    def apply_answer_(self, values: np.ndarray, answer: np.ndarray) -> None:
        np.subtract(values, answer, out=answer)
        np.subtract(values, _times(answer, self.alpha), out=values)

    def distance(self, values: np.ndarray, answer: np.ndarray) -> float:
        size = float(np.linalg.norm(values))
        return float(np.linalg.norm(values - answer)) / size if size else float("nan")


def _times(array: np.ndarray, number: float) -> np.ndarray:
    """The product in at least float32, rounded to the array's dtype."""
    wide = np.result_type(array.dtype, np.float32)
    return np.multiply(array, wide.type(number), dtype=wide).astype(array.dtype, copy=False)
