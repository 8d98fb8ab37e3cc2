"""One table of a job on one server: the centre of the chunks that the server owns, and their rounds."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence, Set
from typing import Any

import numpy as np

from hybridps.errors import ProtocolError, ServerError
from hybridps.memory import Layout, private_memory
from hybridps.ps.budget import Budget
from hybridps.ps.chunk_map import ChunkMap, assign
from hybridps.ps.clocks import Verdict
from hybridps.ps.piece import Ask, Piece
from hybridps.ps.progress import Progress
from hybridps.ps.rules import warm_up
from hybridps.ps.terms import Done, Joined, Outcome, Payload, Terms, Ticket


class Table:
    """The chunks of one server. Every call returns what is to be done and who is to be answered, in order.

    The first server decides who initialises the centre: the lowest group that is expected, so that it does not
    depend on who comes first, or the next one if that group goes before all values are there. The other servers are
    told, so that one group initialises the table on all of them.

    A request that comes again counts once.
    """

    def __init__(
        self,
        name: str,
        terms: Terms,
        groups: int,
        gone: Iterable[int] = (),
        owners: int = 1,
        check_finite: bool = True,
        budget: Budget | None = None,
    ) -> None:
        """`groups` are expected, but for those `gone` already. `owners` share the chunks.

        `check_finite`: values with NaN or Inf are refused.
        """
        self.name = name
        self.terms = terms
        self._pieces = self._make_pieces(owners, budget or Budget(), check_finite)
        self._indices = sorted(self._pieces)
        warm_up(terms.rule, terms.layout.dtype)
        self.progress = self._rounds = Progress(terms.clock.start(groups), len(self._pieces))
        for group in gone:
            self._rounds.leave(group)
        self._expected = set(range(groups)) - set(gone)
        self._present: set[int] = set()
        self._waiting: dict[int, Ticket] = {}
        self._registered: dict[int, Joined] = {}
        """What each group was told."""
        self._initialiser: int | None = None
        self._initial: Ticket | None = None
        """The request that brought the initial values."""
        self._missing: set[int] = set()
        # Where there is nothing to initialise nobody waits; the first server still says who would do it.
        self._ready = bool(terms.server) and not self._pieces
        self._used = False

    @property
    def abandoned(self) -> bool:
        """Whether no group is registered."""
        return not self._present

    def chunks(self, start: int, stop: int) -> Sequence[int]:
        """The chunks `start` to `stop` that are here."""
        return self._indices[bisect_left(self._indices, start) : bisect_left(self._indices, stop)]

    def span_bytes(self, start: int, stop: int) -> int:
        """Of those chunks that are here, about."""
        return min(len(self.chunks(start, stop)) * self.terms.chunk_bytes, self.terms.layout.nbytes)

    def place(self, index: int) -> slice:
        """Where a chunk lies in the flat buffer of the whole table."""
        step = self.terms.chunk_bytes // self.terms.layout.itemsize
        return slice(index * step, index * step + len(self._piece(index).centre))

    def check_payload(self, index: int, payload: Payload) -> None:
        """Raise ProtocolError if the payload has another size than the chunk."""
        self._piece(index).check(payload)

    def check_push(self, index: int, payload: Payload) -> None:
        """As `check_payload`, and raise NotFiniteError for NaN or Inf."""
        self._piece(index).finite_values(payload)

    def register(self, ticket: Ticket, initialise: bool) -> list[Outcome]:
        """A group joins; it is answered when the centre is complete, or when it is the one to initialise it.

        `initialise`: the first server has made this group the initialiser.
        """
        if ticket.group in self._present:
            return self._register_again(ticket)
        if self.terms.server:
            self._check_follows(initialise)
        else:
            first = min(self._expected | {ticket.group})
            initialise = not self._ready and self._initialiser is None and ticket.group == first
        self._present.add(ticket.group)
        self._expected.add(ticket.group)
        self._rounds.join(ticket.group)
        if initialise:
            return self._begin(ticket)
        self._waiting[ticket.group] = ticket
        return self._release()

    def initialise(self, ticket: Ticket, index: int, payload: Payload | None) -> list[Outcome]:
        """The initial values of a chunk came; None is zeros."""
        piece = self._piece(index)
        if ticket == self._initial and index not in self._missing:
            return [Done(ticket, index)]
        self._check_initialiser(ticket)
        initial = None if payload is None else piece.finite_values(payload)
        self._initial = ticket
        self._missing.discard(index)
        self._ready = not self._missing
        return [piece.initialise(index, ticket, initial), *self._release()]

    def exchange(self, ticket: Ticket, index: int, payload: Payload, groups: int = 1) -> list[Outcome]:
        """A group's values of a chunk came; it is sent the answer of their round when the clock says so.

        They may be the sum of so many `groups`, of a rack.
        """
        return self._exchange(ticket, index, [payload], Ask(ticket), groups)

    def exchange_in_place(
        self, ticket: Ticket, index: int, rows: Sequence[np.ndarray], targets: Sequence[np.ndarray], groups: int = 1
    ) -> list[Outcome]:
        """As `exchange`, in memory of the group: the sum of `rows` counts, and the answer is written to all `targets`.

        Nobody may change the rows until then.
        """
        return self._exchange(ticket, index, rows, Ask(ticket, tuple(targets)), groups)

    def push(self, ticket: Ticket, index: int, payload: Payload) -> list[Outcome]:
        """A group's values of a chunk came, which nobody will change; it is told at once that they were taken.

        They are as `check_push` wants them: what it refuses does not count, and the group may push again.
        """
        piece, done = self._usable_piece(ticket, index), Done(ticket, index)
        if piece.counted(ticket):
            return [done]
        values = piece.values(payload)
        verdict = self._rounds.arrive(ticket.group, index)
        piece.bring(ticket, [values], None)
        return [done, *self._go_on(index, piece, verdict, streamed=True)]

    def pull(self, ticket: Ticket, index: int) -> list[Outcome]:
        """A group asks for the centre of a chunk, as it is now."""
        piece = self._usable_piece(ticket, index)
        return [*piece.pull(index, Ask(ticket))]

    def leave(self, group: int) -> list[Outcome]:
        """A group left or is lost: the others go on without it."""
        void = self._rounds.members <= {group}  # before it goes: those who wait take part as soon as it has gone
        self._present.discard(group)
        self._expected.discard(group)
        self._waiting.pop(group, None)
        self._registered.pop(group, None)
        for piece in self._pieces.values():
            piece.leave(group)
        outcomes: list[Outcome] = []
        for index, verdict in self._rounds.leave(group):
            outcomes += self._pieces[index].carry_out(index, verdict)
        if void:
            self.forget()
        if group == self._initialiser and self._missing:
            self._initialiser = None
        return outcomes + self._promote() + self._release()

    def forget(self) -> None:
        """What was brought to rounds under way is given up."""
        for piece in self._pieces.values():
            piece.forget()

    def settle(self, group: int, request: int) -> None:
        """The group has all answers to its requests before that one."""
        for piece in self._pieces.values():
            piece.settle(group, request)

    def begin_without_absent(self, there: Set[int]) -> list[Outcome]:
        """Let one of the groups that are `there` initialise the centre, if the one that should has not come."""
        self._expected &= there
        return self._promote()

    def _check_initialiser(self, ticket: Ticket) -> None:
        if self._ready or ticket.group != self._initialiser:
            raise ProtocolError(f"group {ticket.group} is not the one to initialise table {self.name!r}")

    def _check_follows(self, initialise: bool) -> None:
        """Whether this server's state fits what the first server told the group."""
        if initialise and self._used and self._present:
            raise ServerError(
                f"table {self.name!r} is in use here, but unknown to the first server: "
                "was that one restarted? Restart the job, or all servers"
            )
        if not initialise and not self._ready:
            raise ServerError(
                f"table {self.name!r} has no centre here, but on the first server: "
                "was this one restarted? Restart the job, or all servers"
            )

    def _begin(self, ticket: Ticket) -> list[Outcome]:
        self._initialiser, self._initial = ticket.group, None
        self._missing = set(self._pieces)
        self._ready = not self._missing
        self._used = False
        return [self._admit(ticket, initialise=True), *self._release()]

    def _promote(self) -> list[Outcome]:
        """Make the lowest group that is expected the initialiser, if there is none and that group waits."""
        first = min(self._expected, default=-1)
        if self.terms.server or self._ready or self._initialiser is not None or first not in self._waiting:
            return []
        return self._begin(self._waiting.pop(first))

    def _release(self) -> list[Outcome]:
        """Answer the registrations that wait for the centre, and for the rounds under way."""
        if not self._ready or not self._waiting:
            return []
        members = self._rounds.members
        admitted = [group for group in self._waiting if group in members]
        return [self._admit(self._waiting.pop(group), initialise=False) for group in admitted]

    def _admit(self, ticket: Ticket, initialise: bool) -> Joined:
        self._registered[ticket.group] = joined = Joined(ticket, initialise)
        return joined

    def _register_again(self, ticket: Ticket) -> list[Outcome]:
        """The same request may come again: it is told the same, at once or when it is its turn."""
        told, waits = self._registered.get(ticket.group), self._waiting.get(ticket.group)
        if ticket not in (told and told.ticket, waits):
            raise ProtocolError(f"group {ticket.group} registers table {self.name!r} twice")
        return [told] if told else []

    def _exchange(
        self, ticket: Ticket, index: int, payloads: Sequence[Payload], ask: Ask, groups: int
    ) -> list[Outcome]:
        piece = self._usable_piece(ticket, index)
        values = [piece.values(payload) for payload in payloads]
        if piece.counted(ticket):
            return [*piece.repeat(index, ask)]
        verdict = self._rounds.arrive(ticket.group, index)
        piece.bring(ticket, values, ask, groups)
        return self._go_on(index, piece, verdict, streamed=ask.targets is None)

    def _go_on(self, index: int, piece: Piece, verdict: Verdict, streamed: bool) -> list[Outcome]:
        self._used = True
        if verdict.apply:
            return [*piece.carry_out(index, verdict), *self._release()]
        return [*piece.stream(self._rounds.members)] if streamed else []

    def _usable_piece(self, ticket: Ticket, index: int) -> Piece:
        if ticket.group not in self._present or ticket.group in self._waiting or not self._ready:
            raise ServerError(f"group {ticket.group} has not finished to register table {self.name!r}")
        return self._piece(index)

    def _piece(self, index: int) -> Piece:
        piece = self._pieces.get(index)
        if piece is None:
            raise ProtocolError(
                f"chunk {index} of table {self.name!r} is not on server {self.terms.server} of {self.terms.servers}"
            )
        return piece

    def _make_pieces(self, owners: int, budget: Budget, check_finite: bool) -> dict[int, Piece]:
        """The chunks of this server, each with its memory and its owner."""
        terms = self.terms
        chunks = ChunkMap(terms.layout, terms.chunk_bytes, terms.servers).owned_by(terms.server)
        length = sum(chunk.length for chunk in chunks)
        arrays = [_zeros(length, terms.layout) for _ in range(1 + self._states())]
        pieces, start = {}, 0
        for chunk, owner in zip(chunks, assign(chunks, owners), strict=True):
            centre, *state = [array[start : start + chunk.length] for array in arrays]
            said = f"chunk {chunk.index} of table {self.name!r}"
            pieces[chunk.index] = self._make_piece(
                chunk.index, said, owner, terms.rule, centre, state, budget, check_finite
            )
            start += chunk.length
        return pieces

    def _make_piece(self, index: int, *arguments: Any) -> Piece:
        return Piece(*arguments)

    def _states(self) -> int:
        """Arrays that are kept beside the centre."""
        return self.terms.rule.states


def _zeros(length: int, layout: Layout) -> np.ndarray:
    return private_memory(length * layout.itemsize).view(layout.dtype)
