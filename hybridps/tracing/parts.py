"""Where the time of a step goes, on one worker. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from hybridps.tracing.reading import Interval, TracedStep

WORDS = {
    "compute": "computing",
    "loading": "loading data",
    "waiting": "waiting for workers of the group",
    "allreduce": "allreduce that backward does not hide",
    "exchange": "waiting for the servers",
    "averaging": "averaging weights with other groups",
    "other": "other",
}
"""The parts of a step, in words."""


class Parts(NamedTuple):
    """The parts of a step in seconds, or their means over several steps. They add up to the whole step.

    After the last gradient, nothing hides communication: it counts as `waiting`, `allreduce` or `exchange` from then
    on. Communication before it is hidden, and counts as `compute`.
    """

    compute: float
    loading: float
    waiting: float
    allreduce: float
    exchange: float
    averaging: float
    other: float

    @property
    def whole(self) -> float:
        return sum(self)

    @property
    def own(self) -> float:
        """The time that the worker takes before it needs the others."""
        return self.compute + self.loading


def parts_of(step: TracedStep, has_servers: bool = True) -> Parts:
    """Return the parts of one step, which begins where the previous step ended.

    Without servers, the wait for the last sums belongs to the allreduce.
    """
    began, last, ended = step.began, step.last_gradient, step.time.ended
    averaging = _within((span.time for span in step.spans if span.kind == "averaging"), began, ended)
    before = _within((span.time for span in step.spans if span.kind == "averaging"), began, last)
    loading = min(_within(step.loading, began, step.first_gradient), max(0.0, last - began - before))
    waiting, allreduce, exchange = (
        _within((span.time for span in step.spans if span.kind == kind), last, ended)
        for kind in ("vote", "allreduce", "exchange")
    )
    if not has_servers:
        allreduce, exchange = allreduce + exchange, 0.0
    compute = max(0.0, last - began - before - loading)
    known = compute + loading + waiting + allreduce + exchange + averaging
    return Parts(compute, loading, waiting, allreduce, exchange, averaging, max(0.0, ended - began - known))


def pace_of(parts: Parts, step: TracedStep) -> Parts:
    """Return the `parts` of a step, with the time that its program takes from one step to the next as the least for
    computing and loading.

    A program that does not wait for sums may be ahead of its gradients, and then computes between two sums for less
    than a step takes. That does not mean that it is faster than the other workers.
    """
    return parts._replace(compute=max(parts.compute, step.program_seconds - parts.loading))


def mean_parts(every: Sequence[Parts]) -> Parts:
    """Return the mean of each part."""
    return Parts(*(sum(column) / len(every) for column in zip(*every, strict=True)))


def hidden_seconds(step: TracedStep) -> float:
    """Return the seconds of communication under backward, without the waits for other workers."""
    spans = (span.time for span in step.spans if span.kind in ("allreduce", "exchange"))
    return _within(spans, step.began, step.last_gradient)


def _within(times: Iterable[Interval], began: float, ended: float) -> float:
    return sum(time.within(began, ended) for time in times)
