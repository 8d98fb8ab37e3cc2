"""The communication of hybridps' steps in a worker: when each bucket was complete, begun and summed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from benchmarks.step_task import TracedBucket, TracedStep
from hybridps.step.plan import Plan
from hybridps.step.steps import Gradient
from hybridps.tiers import NoTier, ServersTier


class Trace:
    """Wraps the methods that a gradient passes through, before a store is made. Records while it is `on`."""

    def __init__(self) -> None:
        self.on = False
        self._plans: dict[int, Plan] = {}
        """The plans by the number of the step."""
        self._arrived: dict[tuple[int, str], float] = {}
        """The times by step and key, on the monotonic clock."""
        self._begun: list[float] = []
        self._ended: list[float] = []
        self._bytes: list[int] = []

    def install(self) -> None:
        _wrap(Gradient, "note_done", before=self._note)
        _wrap(NoTier, "sum_", before=self._begin, after=self._end)
        _wrap(ServersTier, "sum_", before=self._begin)
        _wrap(ServersTier, "finish", after=self._end)

    def steps(self) -> list[TracedStep]:
        """Return the steps that were recorded since the last call.

        Raises RuntimeError if they were not reduced bucket by bucket, as planned.
        """
        planned = sum(len(bucket.spans) for plan in self._plans.values() for bucket in plan.buckets)
        if not planned == len(self._begun) == len(self._ended):
            raise RuntimeError(
                f"{len(self._begun)} sums were begun and {len(self._ended)} ended where {planned} were planned: steps "
                "were not reduced bucket by bucket, so there is no trace of them"
            )
        sums = zip(self._begun, self._ended, self._bytes, strict=True)
        traced = []
        for number, plan in sorted(self._plans.items()):
            arrived = {key: self._arrived[number, key] for key in plan.buckets_of}
            buckets = []
            for bucket in plan.buckets:
                ready = max(arrived[key] for key in bucket.keys)
                buckets += [TracedBucket(ready, *next(sums)) for _ in bucket.spans]
            traced.append(TracedStep(max(arrived.values()), buckets))
        for records in (self._plans, self._arrived, self._begun, self._ended, self._bytes):
            records.clear()
        return traced

    def _note(self, item: Gradient) -> None:
        if self.on:
            self._plans[item.step.number] = item.step.plan
            self._arrived[item.step.number, item.name] = item.arrived_at

    def _begin(self, tier: Any, table: str, tensor: Any, start: int, stop: int, *others: Any) -> None:
        if self.on:
            self._begun.append(time.monotonic())
            self._bytes.append((stop - start) * tensor.dtype.itemsize)

    def _end(self, *arguments: Any) -> None:
        if self.on:
            self._ended.append(time.monotonic())


def _nothing(*arguments: Any) -> None:
    pass


def _wrap(kind: type, name: str, before: Callable[..., None] = _nothing, after: Callable[..., None] = _nothing) -> None:
    """Call `before` and `after` around a method, with its arguments."""
    method = getattr(kind, name)

    def wrapped(*arguments: Any) -> Any:
        before(*arguments)
        result = method(*arguments)
        after(*arguments)
        return result

    setattr(kind, name, wrapped)
