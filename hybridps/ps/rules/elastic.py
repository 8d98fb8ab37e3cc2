"""Elastic averaging (Zhang, Choromanska, LeCun, 2015, arXiv 1412.6651), at arrival and in its synchronous form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

import msgspec
import numpy as np
from msgspec import Meta

from hybridps.compiled import compiled
from hybridps.memory import DTYPES
from hybridps.ps.clocks import BulkSynchronous, Clock, FreeRunning
from hybridps.ps.rules.kernel import BLOCK, add_up_finite_, hand_out_


class Elastic(msgspec.Struct, frozen=True, tag="elastic", forbid_unknown_fields=True):
    """d = alpha (w - centre); centre += d at the server (Elastic1), w -= d in the group (Elastic2).

    Both sides use the same d, so that w + centre is conserved by an exchange: it is the answer. d is computed in at
    least float32, so that alpha is not rounded to float16, and then stored in the dtype of the table: both sides see
    the same bits.
    """

    states: ClassVar[int] = 0
    dtypes: ClassVar[tuple[str, ...]] = DTYPES
    clocks: ClassVar[tuple[type[Clock], ...]] = (FreeRunning,)
    alone: ClassVar[bool] = True
    replaces: ClassVar[bool] = False

    alpha: Annotated[float, Meta(ge=0, le=1)]

    def numbers(self, step: int, values: int) -> tuple[float, ...]:
        return (self.alpha,)

    def complete_(self, centre: np.ndarray, total: np.ndarray, state: Sequence[np.ndarray], numbers: Any) -> None:
        (alpha,) = numbers
        np.subtract(total, centre, out=total)
        np.multiply(total, alpha, out=total, dtype=alpha.dtype, casting="same_kind")
        np.add(centre, total, out=centre)

    @staticmethod
    @compiled
    def kernel_(sources, targets, centre, state, numbers, look):  # type: ignore[no-untyped-def]
        (alpha,) = numbers
        buffer = np.empty(BLOCK, centre.dtype)
        for start in range(0, centre.size, BLOCK):
            c = centre[start : start + BLOCK]
            d = buffer[: c.size]
            if not add_up_finite_(d, sources, start, look):
                return start
            for i in range(c.size):
                d[i] = (d[i] - c[i]) * alpha
                c[i] += d[i]
            hand_out_(d, targets, start)
        return centre.size

    def absorb_(self, values: np.ndarray, answer: np.ndarray) -> None:
        np.subtract(values, answer, out=values)

    def distance(self, values: np.ndarray, answer: np.ndarray) -> float:
        size = float(np.linalg.norm(values))
        return float(np.linalg.norm(answer)) / (self.alpha * size) if self.alpha * size else float("nan")


class ElasticTogether(Elastic, frozen=True, tag="elastic-together", forbid_unknown_fields=True):
    """The synchronous form, for the values w_i of C groups:

    centre <- centre + alpha sum_i (w_i - centre) = (1 - C alpha) centre + C alpha mean(w)
    w_i <- w_i - alpha (w_i - centre)

    with the centre of before on both sides, which is the answer. Stable for C alpha <= 1.
    """

    states: ClassVar[int] = 1
    """The answer, in case that it is asked for again."""

    clocks: ClassVar[tuple[type[Clock], ...]] = (BulkSynchronous,)
    alone: ClassVar[bool] = False

    def numbers(self, step: int, values: int) -> tuple[float, ...]:
        return self.alpha, values

    def complete_(self, centre: np.ndarray, total: np.ndarray, state: Sequence[np.ndarray], numbers: Any) -> None:
        alpha, values = numbers
        (before,) = state
        np.copyto(before, centre)
        np.subtract(total, _times(centre, values), out=total)
        np.add(centre, _times(total, alpha), out=centre)
        np.copyto(total, before)

    @staticmethod
    @compiled
    def kernel_(sources, targets, centre, state, numbers, look):  # type: ignore[no-untyped-def]
        alpha, values = numbers
        buffer = np.empty(BLOCK, centre.dtype)
        for start in range(0, centre.size, BLOCK):
            c = centre[start : start + BLOCK]
            before = state[0][start : start + BLOCK]
            total = buffer[: c.size]
            if not add_up_finite_(total, sources, start, look):
                return start
            for i in range(c.size):
                before[i] = c[i]
                c[i] += (total[i] - c[i] * values) * alpha
            hand_out_(before, targets, start)
        return centre.size

    def absorb_(self, values: np.ndarray, answer: np.ndarray) -> None:
        np.subtract(values, answer, out=answer)
        np.subtract(values, _times(answer, self.alpha), out=values)

    def distance(self, values: np.ndarray, answer: np.ndarray) -> float:
        size = float(np.linalg.norm(values))
        return float(np.linalg.norm(values - answer)) / size if size else float("nan")


def _times(array: np.ndarray, number: Any) -> np.ndarray:
    """The product in at least float32, rounded to the array's dtype."""
    wide = np.result_type(array.dtype, np.float32)
    return np.multiply(array, wide.type(number), dtype=wide).astype(array.dtype, copy=False)
