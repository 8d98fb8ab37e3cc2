"""Measures of how wrong a network is."""

from __future__ import annotations

import math

import mxnet as mx
import numpy as np


def loss_of(output: mx.nd.NDArray, labels: mx.nd.NDArray, classes: int, smoothing: float = 0.0) -> mx.nd.NDArray:
    """Return the cross-entropy of each image; a share `smoothing` of the label is spread evenly over the classes."""
    target = mx.nd.one_hot(labels, classes, 1 - smoothing + smoothing / classes, smoothing / classes)
    return -(target * mx.nd.log_softmax(output.astype("float32"))).sum(axis=1)


class RunningLoss:
    """The mean loss of an epoch, in which `steps` steps with the sum of losses `total` are already done.

    Adding a step waits for the step before it, so that Python is at most one step ahead of the computation.
    """

    def __init__(self, steps: int = 0, total: float = 0.0) -> None:
        self._waiting: list[mx.nd.NDArray] = []
        self._steps, self._total = steps, total
        self.latest = math.nan

    def add(self, parts: list[mx.nd.NDArray]) -> None:
        self._settle()
        self._waiting = parts

    def sum(self) -> float:
        """Return the sum of the losses of all steps."""
        self._settle()
        return self._total

    def mean(self) -> float:
        return self.sum() / self._steps

    def _settle(self) -> None:
        if self._waiting:
            self.latest = float(np.mean([part.asnumpy().mean() for part in self._waiting]))
            self._steps += 1
            self._total += self.latest
            self._waiting = []


def score(output: mx.nd.NDArray, labels: mx.nd.NDArray, classes: int) -> np.ndarray:
    """Return how many labels are the best guess, how many are among the best five, and the sum of the losses.

    An image with the label data.NONE adds nothing to any of them.
    """
    best = output.astype("float32").topk(k=min(5, classes)).asnumpy()
    hits = best == labels.asnumpy()[:, None]
    return np.array([hits[:, 0].sum(), hits.any(axis=1).sum(), loss_of(output, labels, classes).sum().asscalar()])
