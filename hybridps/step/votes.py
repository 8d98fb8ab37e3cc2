"""The votes of the ranks of a group in a fused step: whether a bucket is complete, or what else to do."""

from __future__ import annotations

import time
from enum import IntEnum
from functools import partial

from hybridps.step.job_context import JobContext
from hybridps.step.plan import Bucket
from hybridps.step.schedule import POLL_SECONDS, STALL_SECONDS, Item, Schedule, Work
from hybridps.step.step import NEXT_STEP, Step

IDLE_SECONDS = 0.1
"""The time after which a rank that can do nothing looks again whether it can."""


class Vote(IntEnum):
    """The vote of a rank before a bucket. The smallest vote counts."""

    STAY_OVER = 0
    """As `GO_OVER`, and for the following steps too, as long as they have the same keys."""
    GO_OVER = 1
    """A gradient cannot come: use program order for the rest of the step."""
    COMPLETE = 2
    """All gradients of the bucket have arrived. If those of the next n buckets have too, the vote is larger by n."""


class Votes:
    """One rank's votes in a step. All ranks of the group call the same methods in the same order."""

    def __init__(self, step: Step, schedule: Schedule, context: JobContext) -> None:
        self._step = step
        self._schedule = schedule
        self._watch = context.watch
        self._worker = context.worker

    def on_bucket(self, number: int) -> int:
        """Vote on a bucket when it is complete, or cannot be completed. Returns the smallest vote."""
        bucket = self._step.plan.buckets[number]
        own = self._decide(number, bucket)
        began = time.monotonic()
        with self._watch(partial(self._awaited, bucket)):
            smallest, _ = self._schedule.agreement.vote(self._step.phase, own, self._step.title)
        self._step.reducer.trace.span("vote", began, bucket.spans[0].table.name, bucket.keys[0])
        return smallest

    def _decide(self, number: int, bucket: Bucket) -> int:
        step = self._step
        self._schedule.inbox.take_all()
        for name in (step.plan.last_keys[number], *bucket.keys) if step.missing[number] else ():
            if not self._has_arrived(name):
                verb = "computed" if name in step.items else "pushed"
                with self._watch(f"{step.title}: the gradient of key {name!r}, which this worker has not {verb}"):
                    vote = self._await(name, bucket)
                if vote is not Vote.COMPLETE:
                    return vote
        following = step.missing[number + 1 :]
        return Vote.COMPLETE + next((n for n, missing in enumerate(following) if missing), len(following))

    def _await(self, name: str, bucket: Bucket) -> Vote:
        began = time.monotonic()
        while not self._has_arrived(name):
            if self._step.closed and name not in self._step.items:
                return Vote.GO_OVER
            head = next(filter(self._may_be_awaited, self._schedule.inbox.items.open()), None)
            could_go_on = head is not None and head.arrived
            mine = self._step.items.get(name)
            if mine is not None and self._is_pushed(bucket):
                came = self._schedule.inbox.take_first_of(IDLE_SECONDS, (mine,))
            elif head is None:
                came = self._schedule.inbox.take(IDLE_SECONDS)
            else:
                # The program may begin to wait for something that was posted before, and nothing tells this thread so.
                seconds = POLL_SECONDS if could_go_on else IDLE_SECONDS
                posted, items = ((name,), (head,)) if mine is None else ((), (mine, head))
                came = self._schedule.inbox.take_first_of(seconds, items, (NEXT_STEP, *posted))
            if could_go_on and not came and (vote := self._when_quiet(bucket, began)) is not Vote.COMPLETE:
                return vote
        return Vote.COMPLETE

    def _may_be_awaited(self, item: Item) -> bool:
        """Return whether the program may wait for this item, and not for one behind it."""
        return not item.is_never_awaited and (self._schedule.waits_here or not isinstance(item, Work))

    def _when_quiet(self, bucket: Bucket, began: float) -> Vote:
        """Return the vote when nothing has come for a moment, and something could be done in program order."""
        if self._schedule.program_waits() and not self._is_pushed(bucket):
            return Vote.GO_OVER
        stalls = time.monotonic() - max(began, self._schedule.inbox.last_change) > STALL_SECONDS
        return Vote.STAY_OVER if stalls else Vote.COMPLETE

    def _is_pushed(self, bucket: Bucket) -> bool:
        """Return whether all gradients of the bucket were pushed, so that they arrive whatever the program does."""
        return all(map(self._step.items.__contains__, bucket.keys))

    def _has_arrived(self, name: str) -> bool:
        item = self._step.items.get(name)
        return item is not None and item.arrived

    def _awaited(self, bucket: Bucket) -> str:
        """Return what a vote waits for, in words. The watchdog's thread calls this."""
        who = self._schedule.agreement.awaited(self._worker)
        keys = f"keys {bucket.keys[0]!r} to {bucket.keys[-1]!r}"
        return f"{self._step.title}: gradients of {keys} that {who} has not computed"
