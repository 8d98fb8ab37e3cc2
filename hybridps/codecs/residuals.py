"""Gradient compression with error feedback: a worker keeps what quantising omits, and adds it the next time.

1 bit: F. Seide, H. Fu, J. Droppo, G. Li, D. Yu, "1-bit stochastic gradient descent and its application to data-parallel
distributed training of speech DNNs", Interspeech 2014. 2 bits: N. Strom, "Scalable distributed DNN training using
commodity GPU cloud computing", Interspeech 2015. The numbers are those of MXNet 1.9.1.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hybridps.codecs.quantised import Quantised
from hybridps.compiled import compiled
from hybridps.memory import private_memory


class Residuals:
    """What one worker has not yet contributed of the gradients of its tables."""

    def __init__(self, spec: Quantised) -> None:
        self.spec = spec
        self._of: dict[str, np.ndarray] = {}

    def add(self, table: str, length: int, dtype: str) -> None:
        """Add a table, whose residuals are zero. This compiles what `quantise_` needs."""
        memory = private_memory(length * np.dtype(dtype).itemsize)
        self._of[table] = memory.view(dtype)
        self.quantise_(table, [self._of[table][:0].copy()], 0)

    def drop(self, table: str) -> None:
        """Forget a table. An unknown table is ignored."""
        self._of.pop(table, None)

    def __contains__(self, table: str) -> bool:
        return table in self._of

    def quantise_(self, table: str, vectors: Sequence[np.ndarray], start: int) -> None:
        """Set the first vector to what the worker contributes of the sum of all vectors, and the others to zero.

        `vectors`: the same elements of each device, from element `start` of the table on. With the residual r and the
        sum g, r becomes r + g - q. For 2 bits and the threshold t, the contribution q is

            t if r + g >= t,   -t if r + g <= -t,   else 0.

        For 1 bit it is 1 if r + g > t, else -1. A residual that becomes NaN or Inf is set to 0, because it would stay
        forever.
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
