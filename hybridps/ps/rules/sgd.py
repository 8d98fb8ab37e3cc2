"""Stochastic gradient descent at the server, as MXNet 1.9.1 does it, with momentum or without.

g is the sum of the round's gradients. `rescale` makes it a mean: 1 / (C m b) for C groups of m workers with batch b
each.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from hybridps.compiled import compiled
from hybridps.ps.rules.rule import Rule

Finite = Annotated[float, Meta(ge=-1e30, le=1e30)]
NotNegative = Annotated[float, Meta(ge=0, le=1e30)]
Fraction = Annotated[float, Meta(ge=0, le=1)]


class SGD(Rule, frozen=True, tag="sgd", kw_only=True):
    """w <- w - rate (rescale g + weight_decay w). The groups get the new weights."""

    rate: NotNegative
    rescale: Finite = 1.0
    weight_decay: NotNegative = 0.0

    @staticmethod
    @compiled
    def update_(total, w, state, numbers):  # type: ignore[no-untyped-def]
        rate, rescale, decay, _ = numbers
        for i in range(len(w)):
            w[i] -= rate * (rescale * total[i] + decay * w[i])
        return w


class Momentum(SGD, frozen=True, tag="momentum", kw_only=True):
    """v <- momentum v - rate (rescale g + weight_decay w), w <- w + v."""

    states = 1

    momentum: Fraction = 0.9

    @staticmethod
    @compiled
    def update_(total, w, state, numbers):  # type: ignore[no-untyped-def]
        rate, rescale, decay, momentum, _ = numbers
        v = state[0]
        for i in range(len(w)):
            v[i] = momentum * v[i] - rate * (rescale * total[i] + decay * w[i])
            w[i] += v[i]
        return w


class Nesterov(Momentum, frozen=True, tag="nesterov", kw_only=True):
    """d = rate (rescale g + weight_decay w), w <- w + momentum (momentum v - d) - d, then v <- momentum v - d'.

    d' is d with the new w, as in MXNet, whose operator writes w before v. Without weight decay d' = d.
    """

    @staticmethod
    @compiled
    def update_(total, w, state, numbers):  # type: ignore[no-untyped-def]
        rate, rescale, decay, momentum, _ = numbers
        v = state[0]
        for i in range(len(w)):
            down = rate * (rescale * total[i] + decay * w[i])
            kept = momentum * v[i]
            w[i] += momentum * (kept - down) - down
            v[i] = kept - rate * (rescale * total[i] + decay * w[i])
        return w
