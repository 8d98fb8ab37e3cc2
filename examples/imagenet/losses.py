"""How wrong a network is."""

from __future__ import annotations

import math

import mxnet as mx
import numpy as np


def loss_of(output: mx.nd.NDArray, labels: mx.nd.NDArray, classes: int, smoothing: float = 0.0) -> mx.nd.NDArray:
    """Cross-entropy of each image; a part `smoothing` of the label is spread evenly over the classes."""
    target = mx.nd.one_hot(labels, classes, 1 - smoothing + smoothing / classes, smoothing / classes)
    return -(target * mx.nd.log_softmax(output.astype("float32"))).sum(axis=1)


class RunningLoss:
    """The mean loss of an epoch.

    To take in a step waits for the one before, so that Python is at most one step ahead of the computation.
    """

    def __init__(self) -> None:
        self._waiting: list[mx.nd.NDArray] = []
        self._values: list[float] = []

    def add(self, parts: list[mx.nd.NDArray]) -> None:
        self._settle()
        self._waiting = parts

    def latest(self) -> float:
        return self._values[-1] if self._values else math.nan

    def mean(self) -> float:
        self._settle()
        return float(np.mean(self._values))

    def _settle(self) -> None:
        if self._waiting:
            self._values.append(float(np.mean([part.asnumpy().mean() for part in self._waiting])))
            self._waiting = []


def score(output: mx.nd.NDArray, labels: mx.nd.NDArray, classes: int) -> np.ndarray:
    """How many labels are the best guess, how many among the best five, and the sum of the losses.

    The label data.NONE adds nothing to any of them.
    """
    best = output.astype("float32").topk(k=min(5, classes)).asnumpy()
    hits = best == labels.asnumpy()[:, None]
    return np.array([hits[:, 0].sum(), hits.any(axis=1).sum(), loss_of(output, labels, classes).sum().asscalar()])
