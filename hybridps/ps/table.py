"""One table of a job on one server: the centre of the chunks that the server owns, and their rounds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import msgspec
import numpy as np
from msgspec import Meta

from hybridps.errors import LayoutError, ProtocolError, ServerError
from hybridps.memory import Layout, private_memory
from hybridps.ps.chunk_map import Chunk, ChunkMap
from hybridps.ps.clocks import BulkSynchronous, Clock, FreeRunning
from hybridps.ps.rules import AnyRule

Payload = memoryview | np.ndarray
"""Bytes of a chunk, as they came."""


class Terms(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What all groups of a table agree on. `server` is the place of this server among `servers`."""

    layout: Layout
    rule: AnyRule
    chunk_bytes: Annotated[int, Meta(ge=1, le=1 << 28)]
    server: Annotated[int, Meta(ge=0)]
    servers: Annotated[int, Meta(ge=1, le=4096)]

    def check_same(self, other: Terms, table: str) -> None:
        """Raise LayoutError or ServerError with both values if `other` differs from these terms."""
        difference = self.layout.difference(other.layout)
        if difference:
            raise LayoutError(f"table {table!r} is registered with another layout: {difference}")
        for field in ("rule", "chunk_bytes", "servers", "server"):
            here, there = getattr(self, field), getattr(other, field)
            if here != there:
                raise ServerError(
                    f"table {table!r} is registered with {field}={here}, and this group gives {there}: "
                    "start all groups of a job with the same settings"
                )


class Ticket(NamedTuple):
    """Who is to be answered: a group, and the number it gave its request."""

    job: str
    group: int
    request: int


@dataclass(frozen=True, slots=True)
class Joined:
    """The registration is done; with `initialise` the group is to send the initial values."""

    ticket: Ticket
    initialise: bool


@dataclass(frozen=True, slots=True, eq=False)
class Done:
    """A request for a chunk is done. `values` is memory of the table: it changes with the next call."""

    ticket: Ticket
    chunk: int
    values: np.ndarray | None = None


Outcome = Joined | Done


class Table:
    """The chunks of one server. Every call returns who is to be answered with what, in order.

    The first server decides who initialises the centre: the first group that registers, or the next one
    that waits if that group goes before all values are there. The other servers are told, so that one
    group initialises the table on all of them.
    """

    def __init__(self, name: str, terms: Terms, groups: int, gone: Iterable[int] = ()) -> None:
        """`groups` are expected, but for those `gone` already."""
        self.name = name
        self.terms = terms
        self._chunks = _places(ChunkMap(terms.layout, terms.chunk_bytes, terms.servers).owned_by(terms.server))
        length = sum(chunk.length for chunk in self._chunks.values())
        self._centre = _zeros(length, terms.layout)
        self._total = _zeros(length, terms.layout)
        self._clock: Clock = BulkSynchronous(groups) if terms.rule.synchronous else FreeRunning(groups)
        for group in gone:
            self._clock.leave(group)
        self._present: set[int] = set()
        self._waiting: dict[int, Ticket] = {}
        self._askers: dict[int, list[Ticket]] = {index: [] for index in self._chunks}
        self._initialiser: int | None = None
        self._missing: set[int] = set()
        self._ready = False
        self._used = False

    @property
    def abandoned(self) -> bool:
        """Whether no group is registered."""
        return not self._present

    @property
    def nbytes(self) -> int:
        """Memory held, in bytes."""
        return int(self._centre.nbytes + self._total.nbytes)

    def register(self, ticket: Ticket, initialise: bool) -> list[Outcome]:
        """A group joins; it is answered when the centre is complete, or when it is the one to initialise it.

        `initialise`: the first server has made this group the initialiser.
        """
        if ticket.group in self._present:
            raise ProtocolError(f"group {ticket.group} registers table {self.name!r} twice")
        if self.terms.server:
            self._check_follows(initialise)
        else:
            initialise = not self._ready and self._initialiser is None
        self._present.add(ticket.group)
        self._clock.join(ticket.group)
        if initialise:
            return self._begin(ticket)
        self._waiting[ticket.group] = ticket
        return self._release()

    def initialise(self, ticket: Ticket, index: int, payload: Payload | None) -> list[Outcome]:
        """The initial values of a chunk came; None is zeros."""
        if self._ready or ticket.group != self._initialiser:
            raise ProtocolError(f"group {ticket.group} is not the one to initialise table {self.name!r}")
        place = self._place(index)
        if payload is None:
            self._centre[place] = 0
        else:
            np.copyto(self._centre[place], self._values(index, payload))
        self._missing.discard(index)
        self._ready = not self._missing
        return [Done(ticket, index), *self._release()]

    def push(self, ticket: Ticket, index: int, payload: Payload, answered: bool) -> list[Outcome]:
        """A group's values of a chunk came.

        With `answered` the group gets the answer of the round when it is complete, else it is told at
        once that its values were taken.
        """
        self._check_usable(ticket)
        values = self._values(index, payload)
        arrival = self._clock.arrive(ticket.group, index)
        self._used = True
        self.terms.rule.arrive_(self._total[self._place(index)], values, arrival.first)
        outcomes: list[Outcome] = []
        if answered:
            self._askers[index].append(ticket)
        else:
            outcomes.append(Done(ticket, index))
        if arrival.complete:
            outcomes += self._complete(index)
        return outcomes + self._release()

    def pull(self, ticket: Ticket, index: int) -> list[Outcome]:
        """A group asks for the centre of a chunk, as it is now."""
        self._check_usable(ticket)
        return [Done(ticket, index, self._centre[self._place(index)])]

    def leave(self, group: int) -> list[Outcome]:
        """A group left or is lost: the others go on without it."""
        self._present.discard(group)
        self._waiting.pop(group, None)
        for index, tickets in self._askers.items():
            self._askers[index] = [ticket for ticket in tickets if ticket.group != group]
        outcomes: list[Outcome] = []
        for index in self._clock.leave(group):
            outcomes += self._complete(index)
        if group == self._initialiser and not self._ready:
            self._initialiser = None
            outcomes += self._promote()
        return outcomes + self._release()

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
        self._initialiser = ticket.group
        self._missing = set(self._chunks)
        self._ready = not self._missing
        self._used = False
        return [Joined(ticket, initialise=True), *self._release()]

    def _promote(self) -> list[Outcome]:
        """Make the group that has waited longest the initialiser."""
        if not self._waiting:
            return []
        group = next(iter(self._waiting))
        return self._begin(self._waiting.pop(group))

    def _release(self) -> list[Outcome]:
        """Answer the registrations that wait for the centre, and for the rounds under way."""
        if not self._ready or not self._waiting:
            return []
        members = self._clock.members
        admitted = [group for group in self._waiting if group in members]
        return [Joined(self._waiting.pop(group), initialise=False) for group in admitted]

    def _complete(self, index: int) -> list[Outcome]:
        place = self._place(index)
        total = self._total[place]
        self.terms.rule.complete_(self._centre[place], total)
        tickets, self._askers[index] = self._askers[index], []
        return [Done(ticket, index, total) for ticket in tickets]

    def _check_usable(self, ticket: Ticket) -> None:
        if ticket.group not in self._present or ticket.group in self._waiting or not self._ready:
            raise ServerError(f"group {ticket.group} has not finished to register table {self.name!r}")

    def _place(self, index: int) -> slice:
        """Where a chunk lies in this server's arrays."""
        chunk = self._chunks.get(index)
        if chunk is None:
            raise ProtocolError(
                f"chunk {index} of table {self.name!r} is not on server {self.terms.server} of {self.terms.servers}"
            )
        return slice(chunk.start, chunk.stop)

    def _values(self, index: int, payload: Payload) -> np.ndarray:
        place = self._place(index)
        expected = (place.stop - place.start) * self.terms.layout.itemsize
        if payload.nbytes != expected:
            raise ProtocolError(f"chunk {index} of table {self.name!r} has {expected} bytes, {payload.nbytes} came")
        return np.frombuffer(payload, self.terms.layout.dtype)


def _places(chunks: Iterable[Chunk]) -> dict[int, Chunk]:
    """Lay chunks one after the other, by their index."""
    places, start = {}, 0
    for chunk in chunks:
        places[chunk.index] = Chunk(chunk.index, start, start + chunk.length)
        start += chunk.length
    return places


def _zeros(length: int, layout: Layout) -> np.ndarray:
    return private_memory(length * layout.itemsize).view(layout.dtype)
