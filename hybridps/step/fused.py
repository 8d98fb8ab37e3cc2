"""A step whose keys are known: bucket by bucket, the last layers first, whatever order the gradients arrive in."""

from __future__ import annotations

import time
from enum import IntEnum

from hybridps.step.items import Item
from hybridps.step.job_context import JobContext
from hybridps.step.plan import Bucket
from hybridps.step.schedule import POLL_SECONDS, STALL_SECONDS, Schedule
from hybridps.step.step_items import Begin, End, Gradient, Step


class Vote(IntEnum):
    """What a rank votes for before a bucket. The largest vote counts."""

    COMPLETE = 0
    """All gradients of the bucket are there."""
    GO_OVER = 1
    """A gradient cannot come: go on in program order for the rest of the step."""
    STAY_OVER = 2
    """The same, and for the following steps too, as long as they have the same keys."""


class FusedStep:
    """One step on the communication thread. The schedule reports to it what the program posts and what arrives."""

    def __init__(self, step: Step, schedule: Schedule, context: JobContext) -> None:
        self._step = step
        self._schedule = schedule
        self._watch = context.watch
        self._missing = [len(bucket.keys) for bucket in step.plan.buckets]
        """Of each bucket, the keys that have not arrived."""
        self._items: dict[str, Gradient] = {}
        self._closed = False
        self._last_arrival = 0.0

    def see(self, item: Item) -> None:
        """The program has posted this item."""
        if isinstance(item, Gradient):
            if item.in_step and item.step is self._step and item.name in self._step.plan.buckets_of:
                self._items[item.name] = item
                if item.arrived:
                    self.arrive(item)
        elif isinstance(item, (Begin, End)) and item.step.reducer is self._step.reducer and not item.done:
            self._closed = True

    def arrive(self, item: Item) -> None:
        """The item, which `see` was called with before, has arrived."""
        if isinstance(item, Gradient) and self._items.get(item.name) is item:
            self._last_arrival = max(self._last_arrival, item.arrived_at)
            for number in self._step.plan.buckets_of[item.name]:
                self._missing[number] -= 1

    def run(self) -> bool:
        """Reduce all buckets; or those before one that cannot be completed. Returns whether to stay in program order.

        All ranks of the group come to the same result.
        """
        step, vote = self._step, Vote.COMPLETE
        for number, bucket in enumerate(step.plan.buckets):
            vote = self._vote(bucket, self._decide(number, bucket))
            if vote is not Vote.COMPLETE:
                break
            self._reduce(bucket)
        step.reducer.drain(step.number)
        if vote is Vote.COMPLETE:
            step.reducer.spent.end_step(self._last_arrival)
        return vote is Vote.STAY_OVER

    def _decide(self, number: int, bucket: Bucket) -> Vote:
        """Wait until the bucket is complete, or cannot be."""
        self._schedule.take_all()
        if not self._missing[number]:
            return Vote.COMPLETE
        for name in bucket.keys:
            if not self._has_arrived(name):
                verb = "computed" if name in self._items else "pushed"
                with self._watch(f"{self._step.title}: the gradient of key {name!r}, which this worker has not {verb}"):
                    vote = self._await(name, bucket)
                if vote is not Vote.COMPLETE:
                    return vote
        return Vote.COMPLETE

    def _await(self, name: str, bucket: Bucket) -> Vote:
        began = time.monotonic()
        while not self._has_arrived(name):
            if self._closed and name not in self._items:
                return Vote.GO_OVER
            head = self._schedule.head()
            could_go_on = head is not None and head.arrived
            if not self._schedule.take(POLL_SECONDS if could_go_on else None):
                vote = self._when_quiet(bucket, began)
                if vote is not Vote.COMPLETE:
                    return vote
        return Vote.COMPLETE

    def _when_quiet(self, bucket: Bucket, began: float) -> Vote:
        """Nothing has come for a moment, and something could be done in program order."""
        if self._schedule.program_waits() and any(name not in self._items for name in bucket.keys):
            return Vote.GO_OVER
        if time.monotonic() - max(began, self._schedule.last_change) > STALL_SECONDS:
            return Vote.STAY_OVER
        return Vote.COMPLETE

    def _vote(self, bucket: Bucket, own: Vote) -> Vote:
        keys = f"keys {bucket.keys[0]!r} to {bucket.keys[-1]!r}"
        with self._watch(f"{self._step.title}: gradients of {keys} that another worker has not computed"):
            _, largest = self._schedule.agreement.vote(self._step.phase, int(own), self._step.title)
        return Vote(largest)

    def _reduce(self, bucket: Bucket) -> None:
        step, finished = self._step, [self._items[name] for name in bucket.completed]
        for span in bucket.spans:
            step.reducer.begin(span, finished if span is bucket.spans[-1] else (), step.number)
        first = bucket.spans[0]
        step.reached[first.table.name] = first.start

    def _has_arrived(self, name: str) -> bool:
        item = self._items.get(name)
        return item is not None and item.arrived
