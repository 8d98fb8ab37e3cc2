"""An exponential moving average of the weights, which often generalises better than the last weights.

Polyak and Juditsky, 1992; with the decay of "Rethinking the Inception Architecture", Szegedy et al., 2016.
"""

from __future__ import annotations

import mxnet as mx
from mxnet import gluon


class MovingAverage:
    """average = decay * average + (1 - decay) * weight after each step, also for BatchNorm's statistics.

    `net` holds the average. In the first steps the decay is (1 + step) / (10 + step), to forget the initial weights
    soon.
    """

    def __init__(self, net: gluon.Block, trained: gluon.Block, decay: float) -> None:
        self.net, self._decay = net, decay
        self._pairs = [
            pair
            for average, weight in zip(net.collect_params().values(), trained.collect_params().values(), strict=True)
            for pair in zip(average.list_data(), weight.list_data(), strict=True)
        ]

    def begin(self) -> None:
        """Start with the current weights."""
        for average, weight in self._pairs:
            weight.copyto(average)

    def update(self, step: int) -> None:
        """Update the average after a step; `step` counts the steps of the whole training."""
        rest = 1 - min(self._decay, (1 + step) / (10 + step))
        for average, weight in self._pairs:
            # One operation: with these settings average -= -rest * (weight - average)
            mx.nd.sgd_update(average, weight, out=average, lr=-rest, wd=-1.0)
