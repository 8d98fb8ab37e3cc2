"""Stochastic gradient descent at the server, as MXNet 1.9.1 does it, with momentum or without.

g is the sum of the round's gradients. `rescale` makes it a mean: 1 / (C m b) for C groups of m workers with batch b
each.
"""

from __future__ import annotations

import math
from typing import Annotated

from msgspec import Meta

from hybridps.compiled import compiled
from hybridps.ps.rules.rule import Rule

Finite = Annotated[float, Meta(ge=-1e30, le=1e30)]
NotNegative = Annotated[float, Meta(ge=0, le=1e30)]
Fraction = Annotated[float, Meta(ge=0, le=1)]


@compiled
def clipped(value, most):  # type: ignore[no-untyped-def]
    """The value, but not beyond `most` or `-most`."""
    return min(max(value, -most), most)


class SGD(Rule, frozen=True, tag="sgd", kw_only=True):
    """w <- w - rate (clipped(rescale g) + weight_decay w). The groups get the new weights.

    Elements of `rescale g` are cut off at `clip` and `-clip`, unless that is 0.
    """

    rate: NotNegative
    rescale: Finite = 1.0
    weight_decay: NotNegative = 0.0
    clip: NotNegative = 0.0

    def numbers(self, step: int, contributions: int) -> tuple[float, ...]:
        return self.rate, self.rescale, self.weight_decay, self.clip or math.inf

    @staticmethod
    @compiled
    def update_(total, w, state, numbers):  # type: ignore[no-untyped-def]
        rate, rescale, decay, clip = numbers
        for i in range(len(w)):
            w[i] -= rate * (clipped(rescale * total[i], clip) + decay * w[i])
        return w


class Momentum(SGD, frozen=True, tag="momentum", kw_only=True):
    """v <- momentum v - rate (clipped(rescale g) + weight_decay w), w <- w + v."""

    states = 1

    momentum: Fraction = 0.9

    def numbers(self, step: int, contributions: int) -> tuple[float, ...]:
        return *super().numbers(step, contributions), self.momentum

    @staticmethod
    @compiled
    def update_(total, w, state, numbers):  # type: ignore[no-untyped-def]
        rate, rescale, decay, clip, momentum = numbers
        v = state[0]
        for i in range(len(w)):
            v[i] = momentum * v[i] - rate * (clipped(rescale * total[i], clip) + decay * w[i])
            w[i] += v[i]
        return w


class Nesterov(Momentum, frozen=True, tag="nesterov", kw_only=True):
    """d = rate (clipped(rescale g) + weight_decay w), w <- w + momentum (momentum v - d) - d,
    then v <- momentum v - d'.

    d' is d with the new w, as in MXNet, whose operator writes w before v. Without weight decay d' = d.
    """

    @staticmethod
    @compiled
    def update_(total, w, state, numbers):  # type: ignore[no-untyped-def]
        rate, rescale, decay, clip, momentum = numbers
        v = state[0]
        for i in range(len(w)):
            g = clipped(rescale * total[i], clip)
            down = rate * (g + decay * w[i])
            kept = momentum * v[i]
            w[i] += momentum * (kept - down) - down
            v[i] = kept - rate * (g + decay * w[i])
        return w
