"""Gradient compression with error feedback: a worker keeps what quantising left out, and adds it the next time.

1 bit: F. Seide, H. Fu, J. Droppo, G. Li, D. Yu, "1-bit stochastic gradient descent and its application to
data-parallel distributed training of speech DNNs", Interspeech 2014. 2 bits: N. Strom, "Scalable distributed DNN
training using commodity GPU cloud computing", Interspeech 2015. The numbers are those of MXNet 1.9.1.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hybridps.codecs.quantised import Quantised
from hybridps.compiled import compiled
from hybridps.memory import private_memory


class Residuals:
    """What one worker has not contributed yet of the gradients of its tables."""

    def __init__(self, spec: Quantised) -> None:
        self.spec = spec
        self._of: dict[str, np.ndarray] = {}

    def add(self, table: str, length: int, dtype: str) -> None:
        """Begin with zeros for a table. Compiles what `quantise_` needs."""
        memory = private_memory(length * np.dtype(dtype).itemsize)
        self._of[table] = memory.view(dtype)
        self.quantise_(table, [self._of[table][:0].copy()], 0)

    def drop(self, table: str) -> None:
        """Forget a table, if it is known."""
        self._of.pop(table, None)

    def __contains__(self, table: str) -> bool:
        return table in self._of

    def quantise_(self, table: str, vectors: Sequence[np.ndarray], start: int) -> None:
        """The first vector becomes what the worker contributes of the sum of all; the others become zero.

        `vectors`: the same elements of each device, from element `start` of the table on. With r the residual and g
        the sum: r becomes r + g - q, where q, the contribution, is for 2 bits and the threshold t

            t if r + g >= t,   -t if r + g <= -t,   else 0,

        and for 1 bit 1 if r + g > t, else -1. A residual that is NaN or Inf becomes 0: it would stay for ever.
        """
        values, others = vectors[0], vectors[1:]
        for other in others:
            np.add(values, other, out=values)
            other[:] = 0
        residual = self._of[table][start : start + values.size]
        threshold = values.dtype.type(self.spec.threshold)
        (_two_bits_ if self.spec.bits == 2 else _one_bit_)(values, residual, threshold)


@compiled
def _two_bits_(values, residual, threshold):  # type: ignore[no-untyped-def]
    for i in range(values.size):
        kept = residual[i] + values[i]
        sent = threshold if kept >= threshold else (-threshold if kept <= -threshold else threshold * 0)
        values[i] = sent
        kept -= sent
        residual[i] = kept if kept - kept == 0 else threshold * 0


@compiled
def _one_bit_(values, residual, threshold):  # type: ignore[no-untyped-def]
    zero = threshold * 0
    for i in range(values.size):
        kept = residual[i] + values[i]
        sent = zero + 1 if kept > threshold else zero - 1
        values[i] = sent
        kept -= sent
        residual[i] = kept if kept - kept == 0 else zero
