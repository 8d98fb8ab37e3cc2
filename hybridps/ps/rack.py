"""A table on a rack server: its groups meet here, and the rack meets the other racks at the parents.

With a synchronous clock the values of a round are added up here, and the parents' answer is given to all groups of the
rack. `Elastic` averages with the rack's centre, which is averaged with the parents' whenever as many values came as the
rack has groups.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Set
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import numpy as np

from hybridps.errors import HybridPSError, ServerError
from hybridps.memory import ALIGNMENT
from hybridps.ps.clocks import BulkSynchronous, Verdict
from hybridps.ps.piece import Ask, Piece, Targets, Values, hand_out_
from hybridps.ps.rules import Elastic, add_up_
from hybridps.ps.table import Table
from hybridps.ps.terms import Done, Outcome, Payload, Terms, Ticket, Up, Upward, Work


def check_rack(terms: Terms) -> None:
    """Raise ServerError if a rack server cannot compute this rule with this clock, or these chunks."""
    if not isinstance(terms.clock, BulkSynchronous) and not isinstance(terms.rule, Elastic):
        raise ServerError(
            f"the rule {terms.rule} with the clock {terms.clock} cannot be computed in racks: use the clock "
            f"{BulkSynchronous()}, or the rule Elastic; or servers without HYBRIDPS_PARENTS"
        )
    if terms.chunk_bytes % ALIGNMENT:
        raise ServerError(f"chunk_bytes={terms.chunk_bytes} cannot be used in racks: give a multiple of {ALIGNMENT}")


class RackTable(Table):
    """The chunks of one rack server. It is ready when the parents have answered: their centre is the rack's.

    `answered` is called for each `Up` that the calls return.
    """

    def __init__(self, job: str, name: str, terms: Terms, *arguments: Any) -> None:
        self.way = Upward(job, name, terms)
        self._asked = False
        self._above = False
        """Whether the parents know the table."""
        super().__init__(name, terms, *arguments)

    def initialise(self, ticket: Ticket, index: int, payload: Payload | None) -> list[Outcome]:
        """As `Table.initialise`. When all values are there they go to the parents."""
        piece = self._piece(index)
        if ticket == self._initial and index not in self._missing:
            return [Done(ticket, index)] if self._ready else []
        self._check_initialiser(ticket)
        initial = None if payload is None else piece.finite_values(payload)
        if not self._asked:
            self.way.values[self.way.places[index]] = 0 if initial is None else initial
        self._initial = ticket
        self._missing.discard(index)
        if self._missing or self._asked:
            return self._end_start()
        self._asked = True
        return [Up(self.way)]

    def answered(self, up: Up, error: HybridPSError | None) -> list[Outcome]:
        """What went up is back. `error`: these values were refused, and nothing else is wrong."""
        pieces = cast(dict[int, _RackPiece], self._pieces)
        if up.chunk is not None:
            return [*pieces[up.chunk].answered(error)]
        self._above = True
        return [*(piece.begin() for piece in pieces.values()), *self._end_start()]

    def leave(self, group: int) -> list[Outcome]:
        if self._initial is not None and self._initial.group == group:
            self._initial = None
        return super().leave(group)

    def _end_start(self) -> list[Outcome]:
        """Let the groups in, if the initial values came and the parents answered."""
        if self._missing or not self._above:
            return []
        self._ready = True
        done = [Done(self._initial, index) for index in self._pieces] if self._initial else []
        return [*done, *self._release()]

    def _make_piece(self, index: int, *arguments: Any) -> Piece:
        if isinstance(self.terms.clock, BulkSynchronous):
            return _Summed(self.way, index, *arguments)
        return _Averaged(lambda: self._rounds.members, self.way, index, *arguments)

    def _states(self) -> int:
        return 0 if self.way.centre is None else 1


@dataclass(eq=False)
class _Round:
    """A round that is complete in the rack: who waits for its answer, and who for the centre after it."""

    asks: dict[int, Ask]
    values: np.ndarray
    """The sum of what the groups brought."""
    pulls: list[Ask] = field(default_factory=list)
    # Written by the owner, before the sum goes up.
    groups: int = 0
    refused: Set[int] = frozenset()


class _RackPiece(Piece, ABC):
    """`_up` is where the chunk's values lie on their way: the owner's, but from an `Up` until it is `answered`."""

    def __init__(self, way: Upward, index: int, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._way, self._index, self._up = way, index, way.values[way.places[index]]

    def begin(self) -> Work:
        """The centre of the parents becomes that of the rack."""
        return Work(self.owner, partial(np.copyto, self.centre, self._up))

    @abstractmethod
    def answered(self, error: HybridPSError | None) -> list[Outcome]:
        """The parents' answer is there; or, with an `error`, they did not take the values."""


class _Summed(_RackPiece):
    """A chunk whose rounds are added up here and computed by the parents, one after the other.

    Pushes may complete a round while the one before is on its way: it waits, added up.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._under_way: deque[_Round] = deque()
        """The first one is at the parents."""

    def carry_out(self, index: int, verdict: Verdict) -> list[Work]:
        asks = {group: self._asks.pop(group) for group in verdict.answer if group in self._asks}
        total, values = self._round(verdict.apply, asks)
        goes = not self._under_way
        complete = _Round(asks, self._up if goes else self._spare())
        self._under_way.append(complete)
        done: list[Done | Up] = [Up(self._way, self._index)]
        return [Work(self.owner, partial(self._gather, complete, total, values, goes, done), done)]

    def answered(self, error: HybridPSError | None) -> list[Outcome]:
        over = self._under_way.popleft()
        asks = [ask for group, ask in over.asks.items() if group not in over.refused]
        outcomes: list[Outcome] = []
        if error is not None:
            outcomes += [Done(ask.ticket, self._index, error=error) for ask in asks]
        else:
            targets, done = self._replies(self._index, asks)
            outcomes.append(Work(self.owner, partial(self._take, targets), done))
        if over.pulls:
            outcomes.append(self.give(self._index, self.centre, over.pulls))
        if self._under_way:
            up: list[Done | Up] = [Up(self._way, self._index)]
            outcomes.append(Work(self.owner, partial(self._follow, self._under_way[0], up), up))
        return outcomes

    def pull(self, index: int, ask: Ask) -> list[Work]:
        """The rounds that are complete in the rack come first."""
        if not self._under_way:
            return super().pull(index, ask)
        self._under_way[-1].pulls.append(ask)
        return []

    def repeat(self, index: int, ask: Ask) -> list[Work]:
        group, request = ask.ticket.group, ask.ticket.request
        if any(group in over.asks and over.asks[group].ticket.request >= request for over in self._under_way):
            return []
        return super().repeat(index, ask)

    def leave(self, group: int) -> None:
        super().leave(group)
        for over in self._under_way:
            over.asks.pop(group, None)
            over.pulls = [ask for ask in over.pulls if ask.ticket.group != group]

    def _spare(self) -> np.ndarray:
        spare = np.empty_like(self.centre)
        self.budget.lend(spare)
        return spare

    def _gather(
        self, over: _Round, total: np.ndarray | None, values: Values, goes: bool, done: list[Done | Up]
    ) -> None:
        """Work: add up the values that are numbers; the others are refused at once."""
        added_up = self._added_up(total)
        rows, groups = self._usable(values)
        over.groups = self._counted + groups
        if added_up or rows:
            add_up_(over.values, [*added_up, *rows])
        else:
            over.values[:] = 0
        over.refused = {group for group in over.asks if group in self._refused}
        done[:] = [self._end(Done(over.asks[group].ticket, self._index)) for group in sorted(over.refused)]
        if goes:
            done.append(Up(self._way, self._index, over.groups))

    def _follow(self, over: _Round, done: list[Done | Up]) -> None:
        """Work: the next round goes up."""
        np.copyto(self._up, over.values)
        done[:] = [Up(self._way, self._index, over.groups)]

    def _take(self, targets: Targets) -> None:
        """Work: the answer is the rack's."""
        answer = self._kept()
        np.copyto(answer, self._up)
        if self._way.centre is not None:
            np.copyto(self.centre, self._way.centre[self._way.places[self._index]])
        hand_out_(answer, [target for theirs in targets.values() for target in theirs])


class _Averaged(_RackPiece):
    """A chunk whose centre is averaged with that of the parents, whenever as many values came as there are members."""

    def __init__(self, members: Callable[[], Set[int]], *arguments: Any) -> None:
        super().__init__(*arguments)
        self._members = members
        self._came = 0
        self._goes = False

    def carry_out(self, index: int, verdict: Verdict) -> list[Work]:
        self._came += len(verdict.apply)
        return [*super().carry_out(index, verdict), *self._go_up()]

    def answered(self, error: HybridPSError | None) -> list[Outcome]:
        """As `_RackPiece.answered`: the rack's centre moves by d, as the parents' has."""
        self._goes = False
        moves = partial(np.subtract, self.centre, self._up, out=self.centre)
        return [*([] if error else [Work(self.owner, moves)]), *self._go_up()]

    def _go_up(self) -> list[Work]:
        if self._goes or self._came < max(1, len(self._members())):
            return []
        self._came, self._goes = 0, True
        return [Work(self.owner, partial(np.copyto, self._up, self.centre), [Up(self._way, self._index)])]
