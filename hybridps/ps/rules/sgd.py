"""Stochastic gradient descent at the server, as MXNet 1.9.1 does it, with momentum or without.

g is the sum of the round's gradients; `rescale` makes the mean of it, 1 / (C m b) for C groups of m workers with
batch b each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

import msgspec
import numpy as np
from msgspec import Meta

from hybridps.compiled import compiled
from hybridps.ps.clocks import BoundedStale, BulkSynchronous, Clock, FreeRunning
from hybridps.ps.rules.kernel import BLOCK, add_up_finite_, hand_out_

Finite = Annotated[float, Meta(ge=-1e30, le=1e30)]
NotNegative = Annotated[float, Meta(ge=0, le=1e30)]
Fraction = Annotated[float, Meta(ge=0, le=1)]


class SGD(msgspec.Struct, frozen=True, tag="sgd", forbid_unknown_fields=True, kw_only=True):
    """w <- w - rate (rescale g + weight_decay w). The groups get the new weights."""

    states: ClassVar[int] = 0
    dtypes: ClassVar[tuple[str, ...]] = ("float32", "float64")
    clocks: ClassVar[tuple[type[Clock], ...]] = (BulkSynchronous, BoundedStale, FreeRunning)
    alone: ClassVar[bool] = False
    replaces: ClassVar[bool] = True

    rate: NotNegative
    rescale: Finite = 1.0
    weight_decay: NotNegative = 0.0

    def numbers(self, step: int, values: int) -> tuple[float, ...]:
        return self.rate, self.rescale, self.weight_decay

    def complete_(self, centre: np.ndarray, total: np.ndarray, state: Sequence[np.ndarray], numbers: Any) -> None:
        rate, rescale, decay = numbers
        centre -= rate * (rescale * total + decay * centre)
        np.copyto(total, centre)

    @staticmethod
    @compiled
    def kernel_(sources, targets, centre, state, numbers, look):  # type: ignore[no-untyped-def]
        rate, rescale, decay = numbers
        buffer = np.empty(BLOCK, centre.dtype)
        for start in range(0, centre.size, BLOCK):
            w = centre[start : start + BLOCK]
            total = buffer[: w.size]
            if not add_up_finite_(total, sources, start, look):
                return start
            for i in range(w.size):
                w[i] -= rate * (rescale * total[i] + decay * w[i])
            hand_out_(w, targets, start)
        return centre.size

    def absorb_(self, values: np.ndarray, answer: np.ndarray) -> None:
        np.copyto(values, answer)

    def distance(self, values: np.ndarray, answer: np.ndarray) -> float:
        return float("nan")


class Momentum(SGD, frozen=True, tag="momentum", forbid_unknown_fields=True, kw_only=True):
    """v <- momentum v - rate (rescale g + weight_decay w), w <- w + v."""

    states: ClassVar[int] = 1

    momentum: Fraction = 0.9

    def numbers(self, step: int, values: int) -> tuple[float, ...]:
        return self.rate, self.rescale, self.weight_decay, self.momentum

    def complete_(self, centre: np.ndarray, total: np.ndarray, state: Sequence[np.ndarray], numbers: Any) -> None:
        rate, rescale, decay, momentum = numbers
        (v,) = state
        np.subtract(momentum * v, rate * (rescale * total + decay * centre), out=v)
        centre += v
        np.copyto(total, centre)

    @staticmethod
    @compiled
    def kernel_(sources, targets, centre, state, numbers, look):  # type: ignore[no-untyped-def]
        rate, rescale, decay, momentum = numbers
        buffer = np.empty(BLOCK, centre.dtype)
        for start in range(0, centre.size, BLOCK):
            w = centre[start : start + BLOCK]
            v = state[0][start : start + BLOCK]
            total = buffer[: w.size]
            if not add_up_finite_(total, sources, start, look):
                return start
            for i in range(w.size):
                v[i] = momentum * v[i] - rate * (rescale * total[i] + decay * w[i])
                w[i] += v[i]
            hand_out_(w, targets, start)
        return centre.size


class Nesterov(Momentum, frozen=True, tag="nesterov", forbid_unknown_fields=True, kw_only=True):
    """d = rate (rescale g + weight_decay w), w <- w + momentum (momentum v - d) - d, then v <- momentum v - d'.

    d' is d with the new w, as in MXNet, whose operator has written w when it comes to v. Without weight decay d' = d.
    """

    def complete_(self, centre: np.ndarray, total: np.ndarray, state: Sequence[np.ndarray], numbers: Any) -> None:
        rate, rescale, decay, momentum = numbers
        (v,) = state
        down = rate * (rescale * total + decay * centre)
        v *= momentum
        centre += momentum * (v - down) - down
        v -= rate * (rescale * total + decay * centre)
        np.copyto(total, centre)

    @staticmethod
    @compiled
    def kernel_(sources, targets, centre, state, numbers, look):  # type: ignore[no-untyped-def]
        rate, rescale, decay, momentum = numbers
        buffer = np.empty(BLOCK, centre.dtype)
        for start in range(0, centre.size, BLOCK):
            w = centre[start : start + BLOCK]
            v = state[0][start : start + BLOCK]
            total = buffer[: w.size]
            if not add_up_finite_(total, sources, start, look):
                return start
            for i in range(w.size):
                down = rate * (rescale * total[i] + decay * w[i])
                kept = momentum * v[i]
                w[i] += momentum * (kept - down) - down
                v[i] = kept - rate * (rescale * total[i] + decay * w[i])
            hand_out_(w, targets, start)
        return centre.size
