"""A step of a model: its gradients, and when they are reduced. On the communication thread.

Gradients that are expected are reduced bucket by bucket (a fused step). Others, and those of a step that cannot be
completed, are reduced in program order.

Groups may do the same step in different ways, because only one of them has a program that reads sums in the middle. So
that they never wait for each other, a group waits for the answer to a gradient only when everything that its program
asked for before has begun or is done.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence, Set
from functools import partial
from itertools import takewhile

from hybridps.algorithms import UNDER_WAY, Algorithm, AnyRule
from hybridps.step.finite import FiniteCheck
from hybridps.step.inbox import Inbox
from hybridps.step.job_context import JobContext
from hybridps.step.plan import Bucket, Plan, Span, merged, parts
from hybridps.step.schedule import Item, Schedule, finish
from hybridps.step.step import NEXT_STEP, Reduction, Step
from hybridps.step.timing import TimeSpent
from hybridps.step.votes import Vote, Votes

PATIENCE_SECONDS = 1.0
"""If more than `UNDER_WAY` reductions are under way, the time for which the leader waits for the oldest before it goes
on with later ones. It waits in vain once in a step, because another group may need those first."""

LITTLE_PATIENCE_SECONDS = 0.1
"""The same in the step that follows one in which it has waited in vain. A bucket of 4 MB takes 35 ms over 1 Gbit/s."""

MOST_TOGETHER = 4
"""The number of complete buckets that are reduced together where that is quick. It saves time between the ranks."""


class Reducer:
    """Begins and finishes reductions. Used by the communication threads of all ranks, which do the same."""

    def __init__(self, algorithm: Algorithm, context: JobContext) -> None:
        self._algorithm = algorithm
        self._context = context
        self._finite = FiniteCheck(algorithm, context)
        self.may_wait = algorithm.tier.has_servers and algorithm.row.sends == "gradients"
        """Whether there are servers that may answer a gradient only when other groups have contributed to it."""
        self.most_together = 1 if self.may_wait or not algorithm.levels.one_node else MOST_TOGETHER
        """The number of complete buckets that are reduced together."""
        self._under_way: list[Reduction] = []
        self._in_vain = self._was_in_vain = False
        """Whether the leader has waited in vain in this step, and in the step before."""
        self.spent = TimeSpent(context.events, context.servers_view.payload_bytes)
        self.trace = context.trace
        self.model = context.trace.add_model()
        """The number of this model in the trace."""
        self.in_order: Plan | None = None
        """The plan of the steps that stay in program order."""
        self.latest: Step | None = None
        """The latest step that the program is known to have begun."""

    @property
    def waits(self) -> bool:
        """Whether there are reductions under way that servers have to answer."""
        return any(each.exchange is not None for each in self._under_way)

    def reduce(self, spans: Iterable[Span], step: int, items: Mapping[str, Gradient]) -> None:
        """Reduce these spans of the gradients `items`, and finish what was begun of them. They may then be used."""
        for span in spans:
            for part in parts(span, self._context.bucket_bytes):
                self.begin(part, step, items)
        wanted = {*items.values()}
        for each in [each for each in self._under_way if each.members is None or not wanted.isdisjoint(each.members)]:
            self._finish(each)

    def begin(
        self, span: Span, step: int, items: Mapping[str, Gradient], members: Sequence[Gradient] | None = None
    ) -> None:
        """Begin to reduce a span, in which some of `items` lie. `members`: see `Reduction`."""
        rules = span.table.rules(span.start, span.stop, lambda key: items[key].rule) if self._algorithm.updates else ()
        key, began = span.table.key_at(span.start), time.monotonic()
        what = f"step {step}: the sum of {span.table.name} in the group, from key {key!r} on"
        with self._context.watch(what), self.spent.on("group"), self._finite.reducing(span, step) as at_servers:
            exchange = self._algorithm.reduce_(span.table.name, span.table.tensor, span.start, span.stop, rules)
        self.trace.span("allreduce", began, span.table.name, key, span.nbytes)
        reduction = Reduction(span, step, members, exchange, at_servers)
        self._under_way.append(reduction)
        for member in members or ():
            member.under_way += 1
        alike = [each for each in self._under_way if (each.members is None) == (members is None)]
        if len(alike) > UNDER_WAY // self.most_together and exchange is None:
            self._finish(alike[0])
        elif len(alike) > UNDER_WAY:
            self._finish_answered(alike)

    def finish_fused(self) -> None:
        """Finish all reductions that were not begun in program order."""
        for each in [each for each in self._under_way if each.members is not None]:
            self._finish(each)

    def begin_step(self, number: int) -> None:
        """Note that a step begins."""
        self._was_in_vain, self._in_vain = self._in_vain, False
        self.trace.begin(number, self.model)

    def _finish_answered(self, reductions: Sequence[Reduction]) -> None:
        """Wait for the first of these with patience, and finish the first ones that servers have answered."""
        levels, answered, began = self._algorithm.levels, 0, time.monotonic()
        with self._context.watch(partial(self._awaited, reductions[0])), self.spent.on("exchange"):
            if levels.group.rank == 0:
                patience = LITTLE_PATIENCE_SECONDS if self._was_in_vain else PATIENCE_SECONDS
                self._in_vain = not reductions[0].is_answered(0.0 if self._in_vain else patience) or self._in_vain
                answered = sum(1 for _ in takewhile(Reduction.is_answered, reductions))
            _, answered = levels.vote(answered)
        for each in reductions[:answered]:
            self._finish(each, began)
            began = time.monotonic()

    def _finish(self, reduction: Reduction, began: float | None = None) -> None:
        """Finish a reduction, which has been awaited since `began`, and the gradients that are now complete."""
        span, began = reduction.span, began or time.monotonic()
        with self._context.watch(partial(self._awaited, reduction)), self.spent.on("exchange"):
            found = self._algorithm.finish_(reduction.exchange)
        self._finite.reduced(found or {}, span, reduction.step, reduction.at_servers)
        self._under_way.remove(reduction)
        self.trace.span("exchange", began, span.table.name, span.table.key_at(span.start), span.nbytes)
        for member in reduction.members or ():
            member.under_way -= 1
        _finish_complete(reduction.members or ())

    def _awaited(self, reduction: Reduction) -> str:
        """Return what the end of a reduction waits for, in words. The watchdog's thread calls this."""
        behind = self._context.servers_view.behind()
        group = "" if behind in (None, self._context.group) else f", and group {behind} is behind"
        return f"step {reduction.step}: the answer of the servers{group}"


class Begin(Item):
    """The program begins a step, which ends the previous step of the same model.

    If its keys are known, this is a *fused step*: buckets are reduced from the last layers on, in whatever order
    gradients arrive. The rest follows in program order.
    """

    alone = True
    is_never_awaited = True
    arrived = has_begun = True
    name = NEXT_STEP

    def __init__(self, step: Step, schedule: Schedule, context: JobContext) -> None:
        super().__init__(schedule.inbox)
        self.title = step.title
        self.step = step
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
        if plan.buckets and plan is not reducer.in_order:
            reducer.in_order = plan if self._fuse() else None
        return 1

    def _fuse(self) -> bool:
        """Reduce all buckets, or those before one that cannot be completed. Returns whether to stay in program order.

        All ranks of the group get the same result.
        """
        step, number, vote = self.step, 0, int(Vote.COMPLETE)
        while number < len(step.plan.buckets) and vote >= Vote.COMPLETE:
            vote = self._votes.on_bucket(number)
            first, number = number, number + max(0, vote + 1 - Vote.COMPLETE)
            buckets = step.plan.buckets[first:number] if step.reducer.may_wait else ()
            begun = {step.items[name] for bucket in buckets for name in bucket.completes}
            for bucket in step.plan.bundles(first, number, step.reducer.most_together):
                self._reduce(bucket, begun)
        if vote < Vote.COMPLETE:
            if not step.reducer.waits:
                step.reducer.finish_fused()
        elif step.reducer.waits and not self._schedule.inbox.items.all_begun(step.last_place):
            step.end = self._end  # each gradient waits for its turn: other groups may need what comes before it
        else:
            self._end()
        return vote == Vote.STAY_OVER

    def _reduce(self, bucket: Bucket, begun: Set[Item]) -> None:
        """Begin to reduce a bucket, which is complete. `begun`: the gradients that have no part in later buckets."""
        step = self.step
        members = [step.items[name] for name in bucket.keys]
        series = self._schedule.inbox.items.series(members, begun) if step.reducer.may_wait else [members]
        for each in series:
            spans = bucket.spans if len(series) == 1 else bucket.spans_of(member.name for member in each)
            for span in spans:
                step.reducer.begin(span, step.number, step.items, each)
        step.reached[bucket.spans[0].table.name] = bucket.spans[0].start
        for name in bucket.completes:
            step.items[name].has_begun = True
        _finish_complete(members)

    def _end(self) -> None:
        """Finish what is under way, and with it all gradients of the step."""
        step, pace = self.step, self._schedule.pace
        step.end = None
        step.reducer.finish_fused()
        step.reducer.spent.end_step(step.last_arrival)
        program_seconds = pace.program_seconds(self._begun_at)
        step.reducer.trace.end(step.number, step.reducer.model, program_seconds, pace.computes_before)
        pace.end_step(self._begun_at, step.last_arrival, self._schedule.waited_until())


class End(Item):
    """The program ends a step: keys that have not been pushed will not be."""

    alone = True
    arrived = has_begun = True

    def __init__(self, step: Step, inbox: Inbox) -> None:
        super().__init__(inbox)
        self.title = step.title
        self.step = step

    def seen(self) -> None:
        self.step.closed = True

    def run(self, items: Sequence[Item]) -> int:
        self.finish()
        return 1


class Gradient(Item):
    """A gradient that the program has pushed. `in_step`: whether it is one of those that form a step.

    `rule`: how the servers update with it, if they do.
    """

    under_way = 0
    """The number of reductions of a fused step that it lies in and that have not ended."""

    def __init__(self, name: str, span: Span, step: Step, in_step: bool, inbox: Inbox, rule: AnyRule | None) -> None:
        super().__init__(inbox)
        self.name = name
        self.step = step
        self.in_step = in_step
        self.rule = rule
        self.has_begun = span.start == span.stop
        self._span = span

    @property
    def title(self) -> str:  # type: ignore[override]
        return f"the sum of key {self.name!r} in {self.step.title}"

    def seen(self) -> None:
        if self.in_step:
            self.step.see(self)

    def run(self, items: Sequence[Item]) -> int:
        """Reduce this gradient together with the gradients of the same model that directly follow it."""
        mates = self._mates(items)
        left = merged(mate._remaining() for mate in mates.values())
        self.step.reducer.reduce(left, self.step.number, mates)
        _finish_all([mate for mate in mates.values() if not mate.done])
        return len(mates)

    def note_done(self) -> None:
        super().note_done()
        reducer = self.step.reducer
        reducer.trace.arrived(reducer.model, self._span.table.name, self.name, self.arrived_at)
        if self.in_step:
            self.step.items.pop(self.name, None)

    def _remaining(self) -> Span:
        """Return the part that is not reduced yet."""
        return self.step.remaining(self.name, self._span) if self.in_step else self._span

    def _mates(self, items: Sequence[Item]) -> dict[str, Gradient]:
        """Return the first of the items, as long as they are different gradients of this model."""
        mates: dict[str, Gradient] = {}
        for item in items:
            if not isinstance(item, Gradient) or item.step.reducer is not self.step.reducer or item.name in mates:
                break
            mates[item.name] = item
        return mates


def _finish_complete(gradients: Iterable[Gradient]) -> None:
    """Finish those of the gradients of which all has been reduced."""
    _finish_all([each for each in gradients if each.has_begun and not each.under_way and not each.done])


def _finish_all(gradients: Sequence[Gradient]) -> None:
    """Finish gradients, and the steps of which they are the last that were left."""
    finish(gradients)
    for step in {each.step for each in gradients}:
        if step.end is not None and not step.items:
            step.end()
