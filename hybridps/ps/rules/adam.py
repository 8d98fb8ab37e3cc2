"""Adam at the server, as MXNet 1.9.1 computes it (Kingma and Ba, 2014, arXiv 1412.6980)."""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np
from msgspec import Meta

from hybridps.compiled import compiled
from hybridps.ps.rules.sgd import SGD, NotNegative

Below1 = Annotated[float, Meta(ge=0, lt=1)]


class Adam(SGD, frozen=True, tag="adam", kw_only=True):
    """Update t, with h = clipped(rescale g + weight_decay w):

        m <- beta1 m + (1 - beta1) h,   v <- beta2 v + (1 - beta2) h^2
        w <- w - rate sqrt(1 - beta2^t) / (1 - beta1^t) m / (sqrt(v) + epsilon)

    `update` is t. With `update` 0, t is the number of the chunk's round.
    """

    states = 2

    rate: NotNegative = 0.001
    beta1: Below1 = 0.9
    beta2: Below1 = 0.999
    epsilon: NotNegative = 1e-8
    update: Annotated[int, Meta(ge=0, le=1 << 53)] = 0

    def numbers(self, step: int, contributions: int) -> tuple[float, ...]:
        t = self.update or step
        corrected = self.rate * math.sqrt(1 - self.beta2**t) / (1 - self.beta1**t)
        rests = 1 - self.beta1, 1 - self.beta2
        usual = corrected, self.rescale, self.weight_decay, self.clip or math.inf
        return *usual, self.beta1, self.beta2, *rests, self.epsilon

    @staticmethod
    @compiled
    def update_(total, w, state, numbers):  # type: ignore[no-untyped-def]
        rate, rescale, decay, clip, beta1, beta2, rest1, rest2, epsilon = numbers
        m, v = state
        for i in range(len(w)):
            h = min(max(rescale * total[i] + decay * w[i], -clip), clip)
            m[i] = beta1 * m[i] + rest1 * h
            v[i] = beta2 * v[i] + rest2 * h * h
            w[i] -= rate * m[i] / (np.sqrt(v[i]) + epsilon)
        return w
