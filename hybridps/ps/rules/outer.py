"""An outer optimiser on the averaged difference (DiLoCo, Douillard et al., 2023, arXiv 2311.08105)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec
import numpy as np

from hybridps.compiled import compiled
from hybridps.ps.clocks import BoundedStale, BulkSynchronous, Clock, FreeRunning
from hybridps.ps.rules.kernel import BLOCK, add_up_finite_, hand_out_
from hybridps.ps.rules.sgd import Fraction, NotNegative


class Outer(msgspec.Struct, frozen=True, tag="outer", forbid_unknown_fields=True, kw_only=True):
    """The groups bring their weights w_i after some local steps. With d = centre - mean(w), Nesterov's momentum:

    v <- momentum v + d,   centre <- centre - rate (d + momentum v)

    and all go on from the centre, which is the answer. rate = 1 and momentum = 0 average the weights.
    """

    states: ClassVar[int] = 1
    dtypes: ClassVar[tuple[str, ...]] = ("float32", "float64")
    clocks: ClassVar[tuple[type[Clock], ...]] = (BulkSynchronous, BoundedStale, FreeRunning)
    alone: ClassVar[bool] = False
    replaces: ClassVar[bool] = True

    rate: NotNegative = 0.7
    momentum: Fraction = 0.9

    def numbers(self, step: int, values: int) -> tuple[float, ...]:
        return self.rate, self.momentum, values

    def complete_(self, centre: np.ndarray, total: np.ndarray, state: Sequence[np.ndarray], numbers: Any) -> None:
        rate, momentum, values = numbers
        (v,) = state
        d = centre - total / values
        np.add(momentum * v, d, out=v)
        centre -= rate * (d + momentum * v)
        np.copyto(total, centre)

    @staticmethod
    @compiled
    def kernel_(sources, targets, centre, state, numbers, look):  # type: ignore[no-untyped-def]
        rate, momentum, values = numbers
        buffer = np.empty(BLOCK, centre.dtype)
        for start in range(0, centre.size, BLOCK):
            c = centre[start : start + BLOCK]
            v = state[0][start : start + BLOCK]
            total = buffer[: c.size]
            if not add_up_finite_(total, sources, start, look):
                return start
            for i in range(c.size):
                d = c[i] - total[i] / values
                v[i] = momentum * v[i] + d
                c[i] -= rate * (d + momentum * v[i])
            hand_out_(c, targets, start)
        return centre.size

    def absorb_(self, values: np.ndarray, answer: np.ndarray) -> None:
        np.copyto(values, answer)

    def distance(self, values: np.ndarray, answer: np.ndarray) -> float:
        return float("nan")
