"""Looks for NaN and Inf in a worker's own gradients: a sum does not tell whose they were.

Where a node sums the gradients itself, they are searched in the same pass; else before they are reduced.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from hybridps.algorithms import Algorithm
from hybridps.compiled.finite import is_finite
from hybridps.errors import HybridPSError
from hybridps.events import NotFinite
from hybridps.step.job_context import JobContext
from hybridps.step.plan import Span


class NotFiniteGradientError(HybridPSError):
    """A worker's own gradient has NaN or Inf, and the setting `check_finite` is `refuse`."""


class FiniteCheck:
    """Looks for NaN and Inf in gradients, until it has warned of one. Used by one thread."""

    def __init__(self, algorithm: Algorithm, context: JobContext) -> None:
        self._algorithm = algorithm
        self._context = context
        self._refuses = context.settings.check_finite == "refuse"
        self._ignores = context.settings.check_finite == "ignore"
        self._has_warned = False

    @contextmanager
    def reducing(self, span: Span, step: int) -> Iterator[None]:
        """Reduce the span in this context. Warn once of NaN or Inf in it.

        With `refuse` raise NotFiniteGradientError, before anything is reduced. In a node that searches as it reduces,
        each worker searches a part of all workers' gradients: so it goes on after its own warning.
        """
        tensor = span.table.tensor
        in_the_pass = not (self._ignores or self._refuses) and self._algorithm.sums_in_group
        if in_the_pass and tensor.looks_for_not_finite(span.stop - span.start):
            yield
            element = tensor.first_not_finite()
            if element is not None and not self._has_warned:
                self._report(span.table.key_at(element), step)
            return
        looks = not (self._ignores or self._has_warned)
        if looks and any(not is_finite(vector[span.start : span.stop]) for vector in tensor.vectors):
            self._report(_first_key(span), step)
        yield

    def _report(self, key: str, step: int) -> None:
        said = f"worker {self._context.worker}: the gradient of key {key!r} has NaN or Inf in step {step}"
        self._context.events.emit(NotFinite(key, step))
        if self._refuses:
            raise NotFiniteGradientError(f"{said}: look for a loss that diverges, or set HYBRIDPS_CHECK_FINITE=warn")
        self._has_warned = True
        print(f"hybridps: {said}; this worker does not look at later ones", file=sys.stderr, flush=True)


def _first_key(span: Span) -> str:
    for vector in span.table.tensor.vectors:
        finite = np.isfinite(vector[span.start : span.stop])
        if not finite.all():
            return span.table.key_at(span.start + int(np.argmin(finite)))
    return span.table.key_at(span.start)
