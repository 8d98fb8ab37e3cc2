"""An exponential moving average of the weights, which often generalises better than the last weights.

Polyak and Juditsky, 1992; with the decay of "Rethinking the Inception Architecture", Szegedy et al., 2016.
"""

from __future__ import annotations

from collections.abc import Iterator

import mxnet as mx
from mxnet import gluon


class MovingAverage:
    """average = decay * average + (1 - decay) * weight after each step, also for BatchNorm's statistics.

    `net` holds the average. In the first steps the decay is (1 + step) / (10 + step), to forget the initial weights
    soon.
    """

    steps: int = 0
    """The steps of the whole training that are in the average."""

    def __init__(self, net: gluon.Block, trained: gluon.Block, decay: float) -> None:
        self.net, self._trained, self._decay = net, trained, decay

    def begin(self) -> None:
        """Start with the current weights."""
        copy_weights(self._trained, self.net)

    def update(self, updates: int = 0) -> None:
        """Update the average after a step.

        `updates`: those that the optimizer has counted. They are more than this average's steps if another group has
        handed over both the optimizer and the average.
        """
        self.steps = max(self.steps + 1, updates)
        rest = 1 - min(self._decay, (1 + self.steps) / (10 + self.steps))
        for weight, average in _pairs(self._trained, self.net):
            # One operation: with these settings average -= -rest * (weight - average)
            mx.nd.sgd_update(average, weight, out=average, lr=-rest, wd=-1.0)


def copy_weights(source: gluon.Block, target: gluon.Block) -> None:
    """Copy all weights to a network of the same kind on the same devices."""
    for weight, copy in _pairs(source, target):
        weight.copyto(copy)


def _pairs(one: gluon.Block, other: gluon.Block) -> Iterator[tuple[mx.nd.NDArray, mx.nd.NDArray]]:
    for mine, yours in zip(one.collect_params().values(), other.collect_params().values(), strict=True):
        yield from zip(mine.list_data(), yours.list_data(), strict=True)
