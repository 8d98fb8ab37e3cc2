"""Finds NaN and Inf in a worker's own gradients, because a sum does not show which worker they came from.

Where a node or servers sum the gradients of single workers, they are examined in the same pass; otherwise, before they
are reduced.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np

from hybridps.algorithms import Algorithm
from hybridps.compiled.finite import is_finite
from hybridps.errors import HybridPSError
from hybridps.events import NotFinite, say
from hybridps.step.job_context import JobContext
from hybridps.step.plan import Span


class NotFiniteGradientError(HybridPSError):
    """A worker's own gradient has NaN or Inf, and the setting `check_finite` is `refuse`."""


class FiniteCheck:
    """Looks for NaN and Inf in gradients until it has warned of one. Used by one thread.

    The leader of the group reports what servers find, for all of its workers.
    """

    def __init__(self, algorithm: Algorithm, context: JobContext) -> None:
        self._algorithm = algorithm
        self._context = context
        self._how = context.settings.check_finite
        self._warned: set[int] = set()
        """The workers for which a warning was given, as far as this one knows."""

    @contextmanager
    def reducing(self, span: Span, step: int) -> Iterator[bool]:
        """Begin to reduce the span in this context. Warns once of NaN or Inf in it, perhaps not before `reduced`.

        Gives whether the servers examine the gradients.
        With `refuse`, raises NotFiniteGradientError before anything is reduced. In a node that examines gradients as it
        reduces them, each worker examines a part of all workers' gradients, so it continues after its own warning.
        """
        tensor, in_the_pass, at_servers = span.table.tensor, False, False
        if self._how == "warn" and self._algorithm.sums_in_group:
            in_the_pass = tensor.looks_for_not_finite(span.stop - span.start)
        elif self._how == "warn":
            at_servers = self._algorithm.tier.finds_not_finite(span.table.name, tensor)
        own = self._context.worker
        looks = not (in_the_pass or at_servers or self._how == "ignore" or own in self._warned)
        if looks and any(not is_finite(vector[span.start : span.stop]) for vector in tensor.vectors):
            self._report(own, _first_key(span), step)
        yield at_servers
        element = tensor.first_not_finite() if in_the_pass else None
        if element is not None and own not in self._warned:
            self._report(own, span.table.key_at(element), step)

    def reduced(self, found: Mapping[int, int], span: Span, step: int, at_servers: bool) -> None:
        """Note that a reduction has ended. `found`: what `Tier.finish` returned; `at_servers`: as in `reducing`."""
        for rank, element in found.items():
            worker = self._context.worker + rank  # only the leader, whose rank is 0, is told
            if at_servers and worker not in self._warned:
                self._report(worker, span.table.key_at(element), step)
            self._warned.add(worker)  # where the servers do not examine gradients, that worker has done so

    def _report(self, worker: int, key: str, step: int) -> None:
        said = f"worker {worker}: the gradient of key {key!r} has NaN or Inf in step {step}"
        self._context.events.emit(NotFinite(key, step, worker))
        if self._how == "refuse":
            raise NotFiniteGradientError(f"{said}: look for a loss that diverges, or set HYBRIDPS_CHECK_FINITE=warn")
        self._warned.add(worker)
        say(f"{said}; this worker does not look at later ones")


def _first_key(span: Span) -> str:
    for vector in span.table.tensor.vectors:
        finite = np.isfinite(vector[span.start : span.stop])
        if not finite.all():
            return span.table.key_at(span.start + int(np.argmin(finite)))
    return span.table.key_at(span.start)
