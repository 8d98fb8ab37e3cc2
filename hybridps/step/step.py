"""One step of a model, as far as it has got."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hybridps.algorithms import Exchange
from hybridps.step.agreement import digest
from hybridps.step.plan import Plan, Span

if TYPE_CHECKING:
    from hybridps.step.steps import Gradient, Reducer

NEXT_STEP = "the next step"
"""The name of the item with which a step begins. A thread that waits for gradients that were pushed need not see it."""


@dataclass(frozen=True, eq=False)
class Reduction:
    """A reduction under way. `at_servers`: whether servers look for NaN and Inf.

    `members`: the gradients in it, which follow one another in program order; None if it was begun in program order.
    """

    span: Span
    step: int
    members: Sequence[Gradient] | None
    exchange: Exchange | None
    at_servers: bool

    def is_answered(self, seconds: float = 0.0) -> bool:
        """As `Exchange.is_answered_within`."""
        return self.exchange is not None and self.exchange.is_answered_within(seconds)


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
        self.end: Callable[[], None] | None = None
        """Notes the end of the step, if that is left to its last gradient."""
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
        if gradient.arrived_at > self.last_arrival:
            self.last_arrival = gradient.arrived_at
        for number in numbers:
            self.missing[number] -= 1
            if not self.missing[number]:
                self.plan.last_keys[number] = gradient.name

    def remaining(self, name: str, span: Span) -> Span:
        """Return the part of a key's span that is not reduced yet."""
        if name not in self.plan.buckets_of:
            return span
        return span._replace(stop=max(span.start, min(span.stop, self.reached.get(span.table.name, span.stop))))

    @property
    def last_place(self) -> int:
        """The place of the last expected gradient that is not done; 0 if there is none."""
        return max((item.place for item in self.items.values()), default=0)
