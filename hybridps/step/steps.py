"""A step of a model: its gradients and their reduction, on the communication thread.

Gradients that are expected are reduced bucket by bucket (a fused step). Others, and those of a step that cannot be
completed, are reduced in program order.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from functools import partial

from hybridps.algorithms import UNDER_WAY, Algorithm, AnyRule
from hybridps.step.agreement import digest
from hybridps.step.finite import FiniteCheck
from hybridps.step.inbox import Inbox
from hybridps.step.job_context import JobContext
from hybridps.step.plan import Bucket, Plan, Span, merged, parts
from hybridps.step.schedule import POLL_SECONDS, STALL_SECONDS, Entry, Item, Release, Schedule, Work, do_nothing
from hybridps.step.time_spent import TimeSpent


class Reducer:
    """Begins reductions, and finishes them in the same order. Used by the communication thread."""

    def __init__(self, algorithm: Algorithm, context: JobContext) -> None:
        self._algorithm = algorithm
        self._context = context
        self._updates = algorithm.updates
        self._bucket_bytes = context.settings.bytes_reduced_at_a_time
        self._finite = FiniteCheck(algorithm, context)
        self._under_way: deque[tuple[Span, Sequence[Item]]] = deque()
        self.spent = TimeSpent(context.events, context.bytes_with_servers)
        self.trace = context.trace
        self.model = context.trace.add_model()
        """The number of this model in the trace."""
        self.in_order: Plan | None = None
        """The plan of the steps that stay in program order."""
        self.latest: Step | None = None
        """The latest step that the program is known to have begun."""

    def reduce(self, spans: Iterable[Span], step: int, items: Mapping[str, Gradient]) -> None:
        """Reduce these spans of the gradients `items`, which may be used when this returns."""
        for span in spans:
            for part in parts(span, self._bucket_bytes):
                self.begin(part, (), step, items)
        self.drain(step)

    def begin(self, span: Span, finished: Sequence[Item], step: int, items: Mapping[str, Gradient]) -> None:
        """Begin to reduce a span, in which some of `items` lie.

        `finished`: the items that are done when this span and those before it are done.
        """
        rules = span.table.rules(span.start, span.stop, lambda key: items[key].rule) if self._updates else ()
        key, began = span.table.key_at(span.start), time.monotonic()
        what = f"step {step}: the sum of {span.table.name} in the group, from key {key!r} on"
        with self._context.watch(what), self.spent.on("group"), self._finite.reducing(span, step):
            self._algorithm.reduce_(span.table.name, span.table.tensor, span.start, span.stop, rules)
        self.trace.span("allreduce", began, span.table.name, key, span.nbytes)
        self._under_way.append((span, finished))
        if len(self._under_way) > UNDER_WAY:
            self._finish(step)

    def drain(self, step: int) -> None:
        """Finish all reductions under way."""
        while self._under_way:
            self._finish(step)

    def _finish(self, step: int) -> None:
        began = time.monotonic()
        with self._context.watch(partial(self._awaited, step)), self.spent.on("exchange"):
            found = self._algorithm.finish_()
        self._finite.reduced(found or {})
        span, finished = self._under_way.popleft()
        self.trace.span("exchange", began, span.table.name, span.table.key_at(span.start), span.nbytes)
        for item in finished:
            item.finish()

    def _awaited(self, step: int) -> str:
        """Return what the end of a reduction waits for, in words. The watchdog's thread calls this."""
        behind = self._context.behind()
        group = "" if behind in (None, self._context.group) else f", and group {behind} is behind"
        return f"step {step}: the answer of the servers{group}"


class Step:
    """One step of a model: what is expected in it, what has come, and how far the communication thread has got.

    The program's thread makes it. Everything but the title and the number belongs to the communication thread.
    """

    def __init__(self, number: int, plan: Plan, reducer: Reducer) -> None:
        self.number = number
        self.plan = plan
        self.reducer = reducer
        self.title = f"step {number}"
        self.phase = digest([self.title])
        self.items: dict[str, Gradient] = {}
        """The expected gradients that the program has pushed, and that are not done."""
        self.missing = [len(bucket.keys) for bucket in plan.buckets]
        """For each bucket, the number of keys that have not arrived."""
        self.last_arrival = 0.0
        """When the last of the expected gradients arrived, on the monotonic clock."""
        self.closed = False
        """Whether the program pushes no more gradients in this step."""
        self.reached: dict[str, int] = {}
        """By table, the element from which on expected keys are reduced."""

    def see(self, gradient: Gradient) -> None:
        """Note that a gradient of this step was pushed, or has arrived."""
        numbers = self.plan.buckets_of.get(gradient.name)
        if numbers is None:
            return
        if not gradient.arrived:
            self.items[gradient.name] = gradient
            return
        self.last_arrival = max(self.last_arrival, gradient.arrived_at)
        for number in numbers:
            self.missing[number] -= 1

    def remaining(self, name: str, span: Span) -> Span:
        """Return the part of a key's span that is not reduced yet."""
        if name not in self.plan.buckets_of:
            return span
        return span._replace(stop=max(span.start, min(span.stop, self.reached.get(span.table.name, span.stop))))


class Vote(IntEnum):
    """The vote of a rank before a bucket. The smallest vote counts."""

    STAY_OVER = 0
    """As `GO_OVER`, and for the following steps too, as long as they have the same keys."""
    GO_OVER = 1
    """A gradient cannot come: use program order for the rest of the step."""
    COMPLETE = 2
    """All gradients of the bucket have arrived. If those of the next n buckets have too, the vote is larger by n."""


class Begin(Item):
    """The program begins a step, which ends the previous step of the same model.

    If its keys are known, this is a *fused step*: buckets are reduced from the last layers on, in whatever order
    gradients arrive. The rest follows in program order.
    """

    alone = True

    def __init__(self, step: Step, schedule: Schedule, context: JobContext) -> None:
        super().__init__(step.title, schedule.inbox)
        self.step = step
        self.release = do_nothing
        self._schedule = schedule
        self._watch = context.watch
        self._worker = context.worker
        self._begun_at = time.monotonic()

    def seen(self) -> None:
        reducer = self.step.reducer
        if reducer.latest is not None:
            reducer.latest.closed = True
        reducer.latest = self.step

    def run(self, items: Sequence[Item]) -> int:
        self.finish()
        plan, reducer = self.step.plan, self.step.reducer
        reducer.trace.begin(self.step.number, reducer.model)
        if plan.buckets and plan is not reducer.in_order:
            reducer.in_order = plan if self._fuse() else None
        return 1

    def _fuse(self) -> bool:
        """Reduce all buckets, or those before one that cannot be completed. Returns whether to stay in program order.

        All ranks of the group get the same result.
        """
        step, number, vote = self.step, 0, int(Vote.COMPLETE)
        while number < len(step.plan.buckets) and vote >= Vote.COMPLETE:
            bucket = step.plan.buckets[number]
            vote = self._vote(bucket, self._decide(number, bucket))
            for _ in range(Vote.COMPLETE, vote + 1):
                self._reduce(step.plan.buckets[number])
                number += 1
        step.reducer.drain(step.number)
        pace, waited = self._schedule.pace, self._schedule.waited_until()
        if vote >= Vote.COMPLETE:
            step.reducer.spent.end_step(step.last_arrival)
            step.reducer.trace.end(pace.program_seconds(self._begun_at), pace.computes_before)
            pace.end_step(self._begun_at, step.last_arrival, waited)
        return vote == Vote.STAY_OVER

    def _decide(self, number: int, bucket: Bucket) -> int:
        """Wait until the bucket is complete, or cannot be completed, and return this rank's vote."""
        self._schedule.take_all()
        for name in bucket.keys if self.step.missing[number] else ():
            if not self._has_arrived(name):
                verb = "computed" if name in self.step.items else "pushed"
                with self._watch(f"{self.step.title}: the gradient of key {name!r}, which this worker has not {verb}"):
                    vote = self._await(name, bucket)
                if vote is not Vote.COMPLETE:
                    return vote
        following = self.step.missing[number + 1 :]
        return Vote.COMPLETE + next((n for n, missing in enumerate(following) if missing), len(following))

    def _await(self, name: str, bucket: Bucket) -> Vote:
        began = time.monotonic()
        while not self._has_arrived(name):
            if self.step.closed and name not in self.step.items:
                return Vote.GO_OVER
            head = next(filter(self._may_be_awaited, self._schedule.open_items()), None)
            could_go_on = head is not None and head.arrived
            keys = (name, head.name) if head is not None else ()
            came = self._schedule.take(POLL_SECONDS if could_go_on else None, keys)
            if not came and (vote := self._when_quiet(bucket, began)) is not Vote.COMPLETE:
                return vote
        return Vote.COMPLETE

    def _may_be_awaited(self, item: Item) -> bool:
        """Return whether the program may wait for this item, and not for one behind it."""
        return not isinstance(item, Begin) and (self._schedule.waits_here or not isinstance(item, Work))

    def _when_quiet(self, bucket: Bucket, began: float) -> Vote:
        """Return the vote when nothing has come for a moment, and something could be done in program order."""
        if self._schedule.program_waits() and any(name not in self.step.items for name in bucket.keys):
            return Vote.GO_OVER
        stalls = time.monotonic() - max(began, self._schedule.last_change) > STALL_SECONDS
        return Vote.STAY_OVER if stalls else Vote.COMPLETE

    def _vote(self, bucket: Bucket, own: int) -> int:
        began = time.monotonic()
        with self._watch(partial(self._awaited, bucket)):
            smallest, _ = self._schedule.agreement.vote(self.step.phase, own, self.step.title)
        self.step.reducer.trace.span("vote", began, bucket.spans[0].table.name, bucket.keys[0])
        return smallest

    def _awaited(self, bucket: Bucket) -> str:
        """Return what a vote waits for, in words. The watchdog's thread calls this."""
        who = self._schedule.agreement.awaited(self._worker)
        keys = f"keys {bucket.keys[0]!r} to {bucket.keys[-1]!r}"
        return f"{self.step.title}: gradients of {keys} that {who} has not computed"

    def _reduce(self, bucket: Bucket) -> None:
        step, finished = self.step, [self.step.items[name] for name in bucket.completed]
        for span in bucket.spans:
            step.reducer.begin(span, finished if span is bucket.spans[-1] else (), step.number, step.items)
        step.reached[bucket.spans[0].table.name] = bucket.spans[0].start

    def _has_arrived(self, name: str) -> bool:
        item = self.step.items.get(name)
        return item is not None and item.arrived


class End(Item):
    """The program ends a step: keys that have not been pushed will not be."""

    alone = True

    def __init__(self, step: Step, inbox: Inbox[Entry]) -> None:
        super().__init__(step.title, inbox)
        self.step = step
        self.release = do_nothing

    def seen(self) -> None:
        self.step.closed = True

    def run(self, items: Sequence[Item]) -> int:
        self.finish()
        return 1


class Gradient(Item):
    """A gradient that the program has pushed. `in_step`: whether it is one of those that form a step.

    `rule`: how the servers update with it, if they do.
    """

    def __init__(
        self, name: str, span: Span, step: Step, in_step: bool, inbox: Inbox[Entry], rule: AnyRule | None
    ) -> None:
        super().__init__(f"the sum of key {name!r} in {step.title}", inbox)
        self.name = name
        self.step = step
        self.in_step = in_step
        self.rule = rule
        self.arrived_at = 0.0
        """When it arrived, on the monotonic clock."""
        self._span = span

    def __call__(self, release: Release = do_nothing) -> None:
        self.arrived_at = time.monotonic()
        super().__call__(release)

    def seen(self) -> None:
        if self.in_step:
            self.step.see(self)

    @property
    def remaining(self) -> Span:
        """The part that is not reduced yet."""
        return self.step.remaining(self.name, self._span) if self.in_step else self._span

    def run(self, items: Sequence[Item]) -> int:
        """Reduce this gradient together with the gradients of the same model that directly follow it."""
        mates = self._mates(items)
        self.step.reducer.reduce(merged(mate.remaining for mate in mates.values()), self.step.number, mates)
        for mate in mates.values():
            mate.finish()
        return len(mates)

    def finish(self) -> None:
        self.step.reducer.trace.arrived(self._span.table.name, self.name, self.arrived_at)  # its step has begun there
        if self.in_step:
            self.step.items.pop(self.name, None)
        super().finish()

    def _mates(self, items: Sequence[Item]) -> dict[str, Gradient]:
        """Return the first of the items, as long as they are different gradients of this model."""
        mates: dict[str, Gradient] = {}
        for item in items:
            if not isinstance(item, Gradient) or item.step.reducer is not self.step.reducer or item.name in mates:
                break
            mates[item.name] = item
        return mates
