"""One chunk of a table at its server: its memory, and the round under way."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from hybridps.errors import ProtocolError, ServerError
from hybridps.ps.budget import Budget
from hybridps.ps.clocks import Verdict
from hybridps.ps.rules import AnyRule, add_up_, apply_
from hybridps.ps.rules.finite import NotFiniteError, check_finite, is_finite, not_finite
from hybridps.ps.rules.kernel import BLOCK
from hybridps.ps.terms import Done, Payload, Ticket, Work

STREAMED = 4
"""Values that came over a network are added up as soon as so many follow each other: few are ever held."""

SENT = -1
"""Stands for the groups that an answer is sent to."""

Targets = Mapping[int, Sequence[np.ndarray]]
"""Where the answers of the groups are written."""


class Brought(NamedTuple):
    """What a group brought: the sum of `rows`, which is that of so many `groups`."""

    rows: Sequence[np.ndarray]
    groups: int = 1


Values = Mapping[int, Brought]


class Ask(NamedTuple):
    """A group waits for the answer of a round: in `targets`, which are memory of the group, or else it is sent."""

    ticket: Ticket
    targets: tuple[np.ndarray, ...] | None = None


class Piece:
    """`centre` and `state` belong to `owner`: only the work that is returned here touches them.

    The values of a round are added in the order of their groups, whenever they come: the same values make the same
    bits.
    """

    def __init__(
        self,
        name: str,
        owner: int,
        rule: AnyRule,
        centre: np.ndarray,
        state: list[np.ndarray],
        budget: Budget,
        check_finite: bool = True,
    ) -> None:
        self.name = name
        self.owner = owner
        self.rule = rule
        self.centre = centre
        self.state = state
        self.budget = budget
        self.check_finite = check_finite
        self._values: dict[int, Brought] = {}
        self._asks: dict[int, Ask] = {}
        self._total: np.ndarray | None = None
        self._added: tuple[int, ...] = ()
        self._latest: dict[int, int] = {}
        self._given: dict[int, list[Done]] = {}
        """What each group was told last, of rounds of one value: it is kept nowhere else."""
        # From here on the owner's: what only work may touch.
        self._steps = 0
        self._begun = False
        """Whether the total has values of the round under way."""
        self._counted = 0
        """Groups whose values are in it."""
        self._refused: dict[int, NotFiniteError] = {}
        """Groups whose latest values did not count."""

    def check(self, payload: Payload) -> None:
        """Raise ProtocolError if the payload has another size than the chunk."""
        if payload.nbytes != self.centre.nbytes:
            raise ProtocolError(f"{self.name} has {self.centre.nbytes} bytes, {payload.nbytes} came")

    def values(self, payload: Payload) -> np.ndarray:
        """The payload as an array. Raises as `check`."""
        self.check(payload)
        values = np.frombuffer(payload, self.centre.dtype)
        return values if values.flags.aligned else values.copy()

    def finite_values(self, payload: Payload) -> np.ndarray:
        """As `values`, and raises NotFiniteError."""
        values = self.values(payload)
        if self.check_finite:
            check_finite(values, self.name)
        return values

    def counted(self, ticket: Ticket) -> bool:
        """Whether this request, or a later one of its group, has come before."""
        return ticket.request <= self._latest.get(ticket.group, -1)

    def initialise(self, index: int, ticket: Ticket, initial: np.ndarray | None) -> Work:
        """`initial` values, or zeros, become the centre."""

        def run() -> None:
            self._steps = 0
            self.centre[:] = 0 if initial is None else initial
            for array in self.state:
                array[:] = 0

        return Work(self.owner, run, [Done(ticket, index)])

    def bring(self, ticket: Ticket, values: list[np.ndarray], ask: Ask | None, groups: int = 1) -> None:
        """A group brings its values to the round under way: their sum counts, for so many groups."""
        self._latest[ticket.group] = ticket.request
        self._values[ticket.group] = Brought(values, groups)
        self._hold(ask, len(values))
        if ask is not None:
            self._asks[ticket.group] = ask

    def stream(self, members: frozenset[int]) -> list[Work]:
        """Add up the values that came over the network and whose turn it is, if they are enough to be worth it."""
        run = []
        for group in sorted(members | set(self._values)):
            if group in self._added:
                continue
            ask = self._asks.get(group)
            if group not in self._values or (ask is not None and ask.targets is not None):
                break
            run.append(group)
        if len(run) < STREAMED:
            return []
        if self._total is None:
            self._total = np.empty_like(self.centre)
        values = {group: self._pop(group, None) for group in run}
        begins, self._added = not self._added, self._added + tuple(run)
        return [Work(self.owner, partial(self._add_up, self._total, values, begins))]

    def carry_out(self, index: int, verdict: Verdict) -> list[Work]:
        """Compute a round, if there is one, and answer."""
        asks = {group: self._asks.pop(group) for group in verdict.answer if group in self._asks}
        if not verdict.apply:
            return [self._answer(index, [*asks.values()])] if asks else []
        total, values = self._round(verdict.apply, asks)
        targets, done = self._replies(index, [*asks.values()])
        if self.rule.alone:
            self._given |= dict.fromkeys(asks, done)
        return [Work(self.owner, partial(self._complete, total, values, targets, done), done)]

    def pull(self, index: int, ask: Ask) -> list[Work]:
        """Answer with the centre, as it is now."""
        return [self.give(index, self.centre, [ask])]

    def repeat(self, index: int, ask: Ask) -> list[Work]:
        """A request came again that counted already. If it was answered, answer it again: the latest one can be."""
        ticket = ask.ticket
        if ticket.request < self._latest[ticket.group]:
            late = f"the answer to request {ticket.request} for {self.name} was lost, and a later one has counted: "
            error = ServerError(f"{late}have one exchange of a chunk under way at a time")
            return [Work(self.owner, _nothing, [Done(ticket, index, error=error)])]
        if ticket.group in self._asks:
            return []
        if self.rule.alone:
            # Through the owner, which may have the first answer to make yet.
            return [Work(self.owner, _nothing, self._given.get(ticket.group, []))]
        return [self._answer(index, [ask])]

    def settle(self, group: int, request: int) -> None:
        """The group has all answers to its requests before that one."""
        if self._latest.get(group, request) < request:
            self._given.pop(group, None)

    def give(self, index: int, values: np.ndarray, asks: Sequence[Ask]) -> Work:
        """Answer with memory of the chunk."""
        targets, done = self._replies(index, asks)

        def run() -> None:
            hand_out_(values, [target for theirs in targets.values() for target in theirs])

        return Work(self.owner, run, done)

    def _answer(self, index: int, asks: Sequence[Ask]) -> Work:
        """Answer with what was kept of the last round, but for groups whose values did not count."""
        targets, done = self._replies(index, asks)

        def run() -> None:
            taken = [theirs for group, theirs in targets.items() if group not in self._refused]
            hand_out_(self._kept(), [target for theirs in taken for target in theirs])
            done[:] = [self._end(end) for end in done]

        return Work(self.owner, run, done)

    def leave(self, group: int) -> None:
        """What the group brought to a round stays in it; its memory is its own again."""
        self._latest.pop(group, None)
        self._given.pop(group, None)
        ask = self._asks.pop(group, None)
        if ask is not None and ask.targets is not None and group in self._values:
            rows, groups = self._values[group]
            self._values[group] = Brought([row.copy() for row in rows], groups)
            self._hold(None, len(rows))

    def forget(self) -> None:
        """There is no round under way any more."""
        for group in [*self._values]:
            self._pop(group, None)
        self._added = ()

    def _round(self, groups: Sequence[int], asks: dict[int, Ask]) -> tuple[np.ndarray | None, Values]:
        """What the groups brought to the round that ends: the total, if there is one, and what is not in it."""
        total = self._total if self._added else None
        brought = self._asks | asks
        values = {group: self._pop(group, brought.get(group)) for group in groups if group not in self._added}
        self._added = ()
        return total, values

    def _hold(self, ask: Ask | None, values: int) -> None:
        """So many values are kept until their round; not those that are the group's own memory."""
        if ask is None or ask.targets is None:
            self.budget.take(values * self.centre.nbytes)

    def _pop(self, group: int, ask: Ask | None) -> Brought:
        brought = self._values.pop(group)
        self._hold(ask, -len(brought.rows))
        return brought

    def _kept(self) -> np.ndarray:
        """The memory that has the answer of the last round."""
        return self.centre if self.rule.replaces else self.state[0]

    def _replies(self, index: int, asks: Sequence[Ask]) -> tuple[Targets, list[Done]]:
        """Where an answer is written, and what is told then. What is sent is written once for all groups."""
        targets: dict[int, Sequence[np.ndarray]] = {a.ticket.group: a.targets for a in asks if a.targets is not None}
        sent = np.empty_like(self.centre) if len(targets) < len(asks) else None
        if sent is not None:
            self.budget.lend(sent)
            targets[SENT] = (sent,)
        return targets, [Done(ask.ticket, index, sent if ask.targets is None else None) for ask in asks]

    def _add_up(self, total: np.ndarray, values: Values, begins: bool) -> None:
        """Work: the values that are numbers go into the total, and the others are refused when the round ends."""
        if begins:
            self._begin()
        rows, groups = self._usable(values)
        if rows:
            add_up_(total, [total] * self._begun + rows)
            self._begun = True
        self._counted += groups

    def _complete(self, total: np.ndarray | None, values: Values, targets: Targets, done: list[Done]) -> None:
        """Work: a round of the total, if there is one, and the values. It goes on without what is refused."""
        added_up = self._added_up(total)
        self._count_again(values)
        self._apply(added_up, dict(values), {g: theirs for g, theirs in targets.items() if g not in self._refused})
        done[:] = [self._end(end) for end in done]

    def _apply(self, added_up: list[np.ndarray], left: dict[int, Brought], to: dict[int, Sequence[np.ndarray]]) -> None:
        """Part of a work: the rule, on the values of all groups up to the block where one of them is not finite.

        From there on without that group: it leaves `left` and `to`, and is refused.
        """
        size, step = self.centre.size, self._steps + 1
        start, stop, look = 0, size, self.check_finite
        while start < size and (added_up or left):
            part = slice(start, stop)
            out = [target[part] for theirs in to.values() for target in theirs]
            count = self._counted + sum(groups for _, groups in left.values())
            if not count and not self.rule.alone:  # values of no group
                hand_out_(self._kept()[part], out)
                return
            self._steps = step
            start += apply_(
                self.rule,
                [row[part] for row in [*added_up, *(row for rows, _ in left.values() for row in rows)]],
                out,
                self.centre[part],
                [array[part] for array in self.state],
                step=step,
                values=count,
                look=look,
            )
            ended = start >= min(stop, size)
            stop, look = size, self.check_finite
            if not ended and not self._refuse(left, start, start + BLOCK):
                stop, look = start + BLOCK, False  # all are finite, but for their sum
            for group in self._refused:
                to.pop(group, None)

    def _refuse(self, left: dict[int, Brought], start: int, stop: int) -> bool:
        """Groups whose values are not finite at `start:stop` leave `left` and are refused; whether there are any."""
        found = False
        for group, brought in list(left.items()):
            for row in brought.rows:
                if not is_finite(row[start:stop]):
                    self._refused[group] = NotFiniteError(not_finite(row, self.name, start))
                    del left[group]
                    found = True
                    break
        return found

    def _added_up(self, total: np.ndarray | None) -> list[np.ndarray]:
        """Part of a work: what was added up before the round ended, if anything was. Without a total it begins now."""
        if total is None:
            self._begin()
            return []
        return [total] if self._begun else []

    def _begin(self) -> None:
        self._begun, self._counted = False, 0

    def _count_again(self, groups: Iterable[int]) -> None:
        """Part of a work: what these groups brought now has not been refused."""
        for group in groups:
            self._refused.pop(group, None)

    def _end(self, end: Done) -> Done:
        """What a group is told: that its values were refused, if they were."""
        refused = self._refused.get(end.ticket.group)
        return end if refused is None else Done(end.ticket, end.chunk, error=refused)

    def _usable(self, values: Values) -> tuple[list[np.ndarray], int]:
        """Part of a work: the rows of the groups that brought numbers, and how many groups these stand for.

        The others are refused.
        """
        left = dict(values)
        self._count_again(left)
        if self.check_finite:
            self._refuse(left, 0, self.centre.size)
        return [row for rows, _ in left.values() for row in rows], sum(groups for _, groups in left.values())


def _nothing() -> None:
    """Work: only to come after what the owner has to do."""


def hand_out_(values: np.ndarray, targets: Sequence[np.ndarray]) -> None:
    """All targets become the values."""
    for target in targets:
        np.copyto(target, values)
