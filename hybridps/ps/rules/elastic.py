"""Elastic averaging (Zhang, Choromanska, LeCun, 2015, arXiv 1412.6651), at arrival and in its synchronous form."""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np
from msgspec import Meta

from hybridps.compiled import compiled
from hybridps.memory import FLOATS
from hybridps.ps.clocks import BulkSynchronous, Clock, FreeRunning
from hybridps.ps.rules.rule import Rule


class Elastic(Rule, frozen=True, tag="elastic"):
    """d = alpha (w - centre); centre += d at the server (Elastic1), w -= d in the group (Elastic2).

    The answer is d. Both sides use the same bits, so that an exchange conserves w + centre. d is computed in at least
    float32, so that alpha is not rounded to float16, and then stored in the table's dtype.
    """

    dtypes = FLOATS
    clocks: ClassVar[tuple[type[Clock], ...]] = (FreeRunning,)
    separate = True
    answer_is_new_value = False

    alpha: Annotated[float, Meta(ge=0, le=1)]

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


class ElasticTogether(Elastic, frozen=True, tag="elastic-together"):
    """The synchronous form, for the values w_i of C groups:

        centre <- centre + alpha sum_i (w_i - centre) = (1 - C alpha) centre + C alpha mean(w)
        w_i <- w_i - alpha (w_i - centre)

    Both sides use the centre from before the round, which is the answer. Stable for C alpha <= 1.
    """

    states = 1
    """The state is the answer, kept in case a group asks for it again."""

    clocks = (BulkSynchronous,)
    separate = False

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
        np.multiply(answer, self.alpha, out=answer, dtype=np.result_type(answer.dtype, np.float32))
        np.subtract(values, answer, out=values)

    def distance(self, values: np.ndarray, answer: np.ndarray) -> float:
        size = float(np.linalg.norm(values))
        return float(np.linalg.norm(values - answer)) / size if size else float("nan")
