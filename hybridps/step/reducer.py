"""The reductions of one algorithm that are under way."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from hybridps.algorithms import UNDER_WAY, Algorithm
from hybridps.events import Communicated, EventLog
from hybridps.step.finite import FiniteCheck
from hybridps.step.items import Item
from hybridps.step.job_context import JobContext
from hybridps.step.plan import Span, parts

INTERVAL_SECONDS = 1.0
"""Minimum time between two events."""


class TimeSpent:
    """The seconds that the communication thread spends, summed over the steps; written to the events now and then."""

    def __init__(self, events: EventLog) -> None:
        self._events = events
        self._steps = 0
        self._seconds = {"group": 0.0, "exchange": 0.0, "exposed": 0.0}
        self._written = time.monotonic()

    @contextmanager
    def on(self, what: str) -> Iterator[None]:
        """Add the time in the context to `group` or `exchange`."""
        began = time.monotonic()
        yield
        self._seconds[what] += time.monotonic() - began

    def end_step(self, last_gradient: float) -> None:
        """All sums of a step are there. `last_gradient`: when its last gradient arrived, on the monotonic clock."""
        now = time.monotonic()
        self._steps += 1
        self._seconds["exposed"] += now - last_gradient
        if now - self._written >= INTERVAL_SECONDS:
            self._written = now
            self._events.emit(Communicated(self._steps, **{f"{k}_seconds": v for k, v in self._seconds.items()}))


class Reducer:
    """Begins reductions, and ends them in the same order. Used by the communication thread."""

    def __init__(self, algorithm: Algorithm, context: JobContext) -> None:
        self._algorithm = algorithm
        self._context = context
        self._bucket_bytes = context.settings.bytes_reduced_at_a_time
        self._finite = FiniteCheck(context)
        self._under_way: deque[Sequence[Item]] = deque()
        self.spent = TimeSpent(context.events)

    def reduce(self, spans: Iterable[Span], step: int) -> None:
        """Reduce these spans; they may be used when this returns."""
        for span in spans:
            for part in parts(span, self._bucket_bytes):
                self.begin(part, (), step)
        self.drain(step)

    def begin(self, span: Span, finished: Sequence[Item], step: int) -> None:
        """Begin to reduce a span. `finished`: items that are done when it is done, and those before it."""
        self._finite.check(span, step)
        what = f"step {step}: the sum of {span.table.name} in the group, from key {span.table.key_at(span.start)!r} on"
        with self._context.watch(what), self.spent.on("group"):
            self._algorithm.reduce_(span.table.name, span.table.tensor, span.start, span.stop)
        self._under_way.append(finished)
        if len(self._under_way) > UNDER_WAY:
            self._finish(step)

    def drain(self, step: int) -> None:
        """End all that are under way."""
        while self._under_way:
            self._finish(step)

    def _finish(self, step: int) -> None:
        with self._context.watch(f"step {step}: the answer of the servers"), self.spent.on("exchange"):
            self._algorithm.finish_()
        for item in self._under_way.popleft():
            item.finish()
