"""Stochastic gradient descent at the server, as MXNet 1.9.1 computes it, with or without momentum.

g is the sum of the round's gradients. `rescale` turns it into a mean: 1 / (C m b) for C groups of m workers with batch
size b each.
"""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np
from msgspec import Meta

from hybridps.compiled import compiled
from hybridps.ps.rules.rule import Rule

Finite = Annotated[float, Meta(ge=-1e30, le=1e30)]
NotNegative = Annotated[float, Meta(ge=0, le=1e30)]
Fraction = Annotated[float, Meta(ge=0, le=1)]


@compiled
def clip_(total, rescale, most):  # type: ignore[no-untyped-def]
    """Multiply `total` by `rescale` and clip it at `most` (Inf: not at all) and `-most`. Returns the factor left.

    This is a separate pass, in the cache, so that updates without clipping do not pay for it.
    """
    if most == np.inf:
        return rescale
    for i in range(len(total)):
        total[i] = min(max(rescale * total[i], -most), most)
    return type(rescale)(1)


class SGD(Rule, frozen=True, tag="sgd", kw_only=True):
    """w <- w - rate (clipped(rescale g) + weight_decay w). The groups get the new weights.

    Elements of `rescale g` are clipped at `clip` and `-clip`, unless `clip` is 0.
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
        rescale = clip_(total, rescale, clip)
        for i in range(len(w)):
            w[i] -= rate * (rescale * total[i] + decay * w[i])
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
        rescale = clip_(total, rescale, clip)
        for i in range(len(w)):
            v[i] = momentum * v[i] - rate * (rescale * total[i] + decay * w[i])
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
        rescale = clip_(total, rescale, clip)
        for i in range(len(w)):
            g = rescale * total[i]
            down = rate * (g + decay * w[i])
            kept = momentum * v[i]
            w[i] += momentum * (kept - down) - down
            v[i] = kept - rate * (g + decay * w[i])
        return w
