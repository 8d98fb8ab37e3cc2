"""A step of a model: its gradients, and when they are reduced. On the communication thread.

Gradients that are expected are reduced bucket by bucket (a fused step). Others, and those of a step that cannot be
completed, are reduced in program order.

Groups may do the same step in different ways, because only one of them has a program that reads sums in the middle. So
that they never wait for each other, a group waits for an answer of the servers only when it has begun, or done,
everything that its program asked for before.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile

from hybridps.algorithms import UNDER_WAY, Algorithm, AnyRule, Exchange
from hybridps.step.finite import FiniteCheck
from hybridps.step.inbox import Inbox
from hybridps.step.job_context import JobContext
from hybridps.step.plan import Plan, Span, merged, parts
from hybridps.step.schedule import Entry, Item, Release, Schedule, do_nothing
from hybridps.step.step import Step
from hybridps.step.timing import TimeSpent
from hybridps.step.votes import Vote, Votes

PATIENCE_SECONDS = 1.0
"""If more than `UNDER_WAY` reductions are under way, the time for which the leader waits for the oldest before it goes
on with later ones. It waits in vain once in a step, because another group may need those first."""

LITTLE_PATIENCE_SECONDS = 0.01
"""The same in the step that follows one in which it has waited in vain."""


@dataclass(frozen=True, eq=False)
class Reduction:
    """A reduction under way.

    `bucket`: its number in the plan of the step, or None in program order. `finished`: the items that are done when
    this reduction and those before it are done. `at_servers`: whether servers look for NaN and Inf.
    """

    span: Span
    step: int
    bucket: int | None
    finished: Sequence[Item]
    exchange: Exchange | None
    at_servers: bool


class Reducer:
    """Begins and finishes reductions. Used by the communication threads of all ranks, which do the same."""

    def __init__(self, algorithm: Algorithm, context: JobContext) -> None:
        self._algorithm = algorithm
        self._context = context
        self._updates = algorithm.updates
        self._bucket_bytes = context.settings.bytes_reduced_at_a_time
        self._finite = FiniteCheck(algorithm, context)
        self._under_way: list[Reduction] = []
        self._patience_seconds = PATIENCE_SECONDS
        self.spent = TimeSpent(context.events, context.bytes_with_servers)
        self.trace = context.trace
        self.model = context.trace.add_model()
        """The number of this model in the trace."""
        self.in_order: Plan | None = None
        """The plan of the steps that stay in program order."""
        self.latest: Step | None = None
        """The latest step that the program is known to have begun."""

    @property
    def waits_for_groups(self) -> bool:
        """Whether reductions are under way that end only when other groups have contributed."""
        return any(each.exchange is not None for each in self._under_way)

    def begin_step(self, number: int) -> None:
        """Note that a step begins."""
        self._patience_seconds = PATIENCE_SECONDS if self._patience_seconds else LITTLE_PATIENCE_SECONDS
        self.trace.begin(number, self.model)

    def reduce(
        self, spans: Iterable[Span], step: int, items: Mapping[str, Gradient], buckets: Collection[int] = ()
    ) -> None:
        """Reduce these spans of the gradients `items`, and finish these buckets. The gradients may then be used."""
        for span in spans:
            for part in parts(span, self._bucket_bytes):
                self.begin(part, step, items)
        self.finish({None, *buckets})

    def begin(
        self,
        span: Span,
        step: int,
        items: Mapping[str, Gradient],
        bucket: int | None = None,
        finished: Sequence[Item] = (),
    ) -> None:
        """Begin to reduce a span, in which some of `items` lie. `bucket`, `finished`: see `Reduction`."""
        rules = span.table.rules(span.start, span.stop, lambda key: items[key].rule) if self._updates else ()
        key, began = span.table.key_at(span.start), time.monotonic()
        what = f"step {step}: the sum of {span.table.name} in the group, from key {key!r} on"
        with (
            self._context.watch(what),
            self.spent.on("group"),
            self._finite.reducing(span, step) as at_servers,
        ):
            exchange = self._algorithm.reduce_(span.table.name, span.table.tensor, span.start, span.stop, rules)
        self.trace.span("allreduce", began, span.table.name, key, span.nbytes)
        self._under_way.append(Reduction(span, step, bucket, finished, exchange, at_servers))
        alike = [each for each in self._under_way if (each.bucket is None) == (bucket is None)]
        if len(alike) > UNDER_WAY and exchange is None:
            self._finish(alike[0])
        elif len(alike) > UNDER_WAY:
            self._finish_answered(alike, self._patience_seconds)

    def finish(self, buckets: Collection[int | None]) -> None:
        """Finish the reductions of these buckets; None: those in program order."""
        for each in [each for each in self._under_way if each.bucket in buckets]:
            self._finish(each)

    def finish_answered(self) -> None:
        """Finish the oldest reductions, as many as servers have answered."""
        self._finish_answered(self._under_way, 0.0)

    def _finish_answered(self, reductions: Sequence[Reduction], seconds: float) -> None:
        """Wait for the first of these, for at most `seconds`, and finish the first ones that have been answered."""
        levels, answered = self._algorithm.levels, 0
        if levels.group.rank == 0 and reductions:
            with self._context.watch(partial(self._awaited, reductions[0])), self.spent.on("exchange"):
                if not _is_answered(reductions[0], seconds) and seconds:
                    self._patience_seconds = 0.0
                answered = sum(1 for _ in takewhile(_is_answered, reductions))
        for each in reductions[: levels.vote(answered)[1]]:
            self._finish(each)

    def _finish(self, reduction: Reduction) -> None:
        span, began = reduction.span, time.monotonic()
        with self._context.watch(partial(self._awaited, reduction)), self.spent.on("exchange"):
            found = self._algorithm.finish_(reduction.exchange)
        self._finite.reduced(found or {}, span, reduction.step, reduction.at_servers)
        self._under_way.remove(reduction)
        self.trace.span("exchange", began, span.table.name, span.table.key_at(span.start), span.nbytes)
        for item in reduction.finished:
            item.finish()

    def _awaited(self, reduction: Reduction) -> str:
        """Return what the end of a reduction waits for, in words. The watchdog's thread calls this."""
        behind = self._context.behind()
        group = "" if behind in (None, self._context.group) else f", and group {behind} is behind"
        return f"step {reduction.step}: the answer of the servers{group}"


def _is_answered(reduction: Reduction, seconds: float = 0.0) -> bool:
    return reduction.exchange is not None and reduction.exchange.is_answered_within(seconds)


class Begin(Item):
    """The program begins a step, which ends the previous step of the same model.

    If its keys are known, this is a *fused step*: buckets are reduced from the last layers on, in whatever order
    gradients arrive. The rest follows in program order. A step that begins before that of another model has ended is
    not fused, because its gradients may be computed from sums of that one.
    """

    alone = True
    is_never_awaited = True

    def __init__(self, step: Step, schedule: Schedule, context: JobContext) -> None:
        super().__init__(step.title, schedule.inbox)
        self.step = step
        self.release = do_nothing
        self._schedule = schedule
        self._votes = Votes(step, schedule, context)
        self._begun_at = time.monotonic()

    def seen(self) -> None:
        reducer = self.step.reducer
        if reducer.latest is not None:
            reducer.latest.closed = True
        reducer.latest = self.step

    def run(self, items: Sequence[Item]) -> int:
        self.finish()
        plan, reducer = self.step.plan, self.step.reducer
        reducer.begin_step(self.step.number)
        if plan.buckets and plan is not reducer.in_order and not self._schedule.meanwhile:
            reducer.in_order = plan if self._fuse() else None
        return 1

    def _fuse(self) -> bool:
        """Reduce all buckets, or those before one that cannot be completed. Returns whether to stay in program order.

        All ranks of the group get the same result.
        """
        step, number, vote = self.step, 0, int(Vote.COMPLETE)
        while number < len(step.plan.buckets) and vote >= Vote.COMPLETE:
            vote = self._votes.on_bucket(number)
            for _ in range(Vote.COMPLETE, vote + 1):
                self._reduce(number)
                number += 1
        if vote >= Vote.COMPLETE:
            others = step.reducer.waits_for_groups and self._schedule.items.leave_aside(set(step.items.values()))
            (self._end_later if others else self._end)()
        return vote == Vote.STAY_OVER

    def _end_later(self) -> None:
        """Leave the end to the last gradient: other groups may first need what the program asked for before it."""
        self.step.end = self._end
        self._schedule.meanwhile.append(self._meanwhile)

    def _meanwhile(self) -> None:
        """Finish what has been answered: what has not arrived may be computed from it."""
        self.step.reducer.finish_answered()
        if not self.step.items:
            self._end()

    def _end(self) -> None:
        """Finish all buckets, and with them all gradients."""
        step, schedule = self.step, self._schedule
        step.reducer.finish(range(len(step.plan.buckets)))
        step.end = None
        if self._meanwhile in schedule.meanwhile:
            schedule.meanwhile.remove(self._meanwhile)
        waited = schedule.waited_until()
        step.reducer.spent.end_step(step.last_arrival)
        step.reducer.trace.end(schedule.pace.program_seconds(self._begun_at), schedule.pace.computes_before)
        schedule.pace.end_step(self._begun_at, step.last_arrival, waited)

    def _reduce(self, number: int) -> None:
        """Begin to reduce a bucket, which is complete."""
        step, bucket = self.step, self.step.plan.buckets[number]
        finished = [step.items[name] for name in bucket.completed]
        for span in bucket.spans:
            step.reducer.begin(span, step.number, step.items, number, finished if span is bucket.spans[-1] else ())
        step.reached[bucket.spans[0].table.name] = bucket.spans[0].start


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
        mates, step = self._mates(items), self.step
        if step.end is not None and self.name in step.plan.buckets_of:
            step.end()
        buckets = {number for name in mates for number in step.plan.buckets_of.get(name, ())}
        step.reducer.reduce(merged(mate.remaining for mate in mates.values()), step.number, mates, buckets)
        for mate in mates.values():
            if not mate.done:
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
