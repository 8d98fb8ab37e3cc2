"""A step of a model, and its items: its beginning, its gradients, its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from hybridps.step.agreement import digest
from hybridps.step.items import Inbox, Item, Release, do_nothing
from hybridps.step.plan import Plan, Span, merged
from hybridps.step.reducer import Reducer


class Step:
    """One step of a model: what is expected in it, and how far the communication thread has come."""

    def __init__(self, number: int, plan: Plan, reducer: Reducer) -> None:
        self.number = number
        self.plan = plan
        self.reducer = reducer
        self.title = f"step {number}"
        self.phase = digest([self.title])
        self.reached: dict[str, int] = {}
        """By table: expected keys are reduced from this element on."""

    def remaining(self, name: str, span: Span) -> Span:
        """What of a key's span is not reduced yet."""
        if name not in self.plan.buckets_of:
            return span
        return span._replace(stop=max(span.start, min(span.stop, self.reached.get(span.table.name, span.stop))))


class Begin(Item):
    """The program begins a step, and so ends the one before it of the same model."""

    alone = True

    def __init__(self, step: Step, inbox: Inbox, work: Callable[[], None]) -> None:
        super().__init__(step.title, inbox)
        self.step = step
        self.release = do_nothing
        self._work = work

    def run(self, items: Sequence[Item]) -> int:
        self.finish()
        self._work()
        return 1


class End(Item):
    """The program ends a step: keys that have not come will not come any more."""

    alone = True

    def __init__(self, step: Step, inbox: Inbox) -> None:
        super().__init__(step.title, inbox)
        self.step = step
        self.release = do_nothing

    def run(self, items: Sequence[Item]) -> int:
        self.finish()
        return 1


class Gradient(Item):
    """A gradient that the program has pushed. `in_step`: whether it is one of those that make a step."""

    def __init__(self, name: str, span: Span, step: Step, in_step: bool, inbox: Inbox) -> None:
        super().__init__(f"the sum of key {name!r} in {step.title}", inbox)
        self.name = name
        self.step = step
        self.in_step = in_step
        self.arrived_at = 0.0
        """On the monotonic clock."""
        self._span = span

    def __call__(self, release: Release = do_nothing) -> None:
        self.arrived_at = time.monotonic()
        super().__call__(release)

    @property
    def remaining(self) -> Span:
        """What is not reduced yet."""
        return self.step.remaining(self.name, self._span) if self.in_step else self._span

    def run(self, items: Sequence[Item]) -> int:
        """Reduce this gradient together with those of the same model that follow directly."""
        mates = self._mates(items)
        self.step.reducer.reduce(merged(mate.remaining for mate in mates), self.step.number)
        for mate in mates:
            mate.finish()
        return len(mates)

    def _mates(self, items: Sequence[Item]) -> list[Gradient]:
        """The first of the items, as long as they are different gradients of this model."""
        mates: dict[str, Gradient] = {}
        for item in items:
            if not isinstance(item, Gradient) or item.step.reducer is not self.step.reducer or item.name in mates:
                break
            mates[item.name] = item
        return list(mates.values())
