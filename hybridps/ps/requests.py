"""What a request of a group means for the tables of a server. Without transport."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np

from hybridps.errors import ProtocolError
from hybridps.ps import wire
from hybridps.ps.regions import MOST_REGIONS, attach
from hybridps.ps.shard import Shard
from hybridps.ps.table import Table
from hybridps.ps.terms import Outcome, Ticket

_CONTROL_WEIGHT = 16
"""To read a byte of a control message takes as long as to add up so many of values."""


class Regions:
    """The shared memory of one client, by the numbers that it gave."""

    def __init__(self) -> None:
        self._memory: dict[int, np.ndarray] = {}
        self._attached: dict[int, wire.Attach] = {}

    def attach(self, message: wire.Attach) -> None:
        """Raises LayoutError if it cannot be had, ProtocolError for a number that is taken or too many.

        The same message may come again.
        """
        if self._attached.get(message.region) == message:
            return
        if message.region in self._memory or len(self._memory) >= MOST_REGIONS:
            raise ProtocolError(f"region {message.region} is taken, or there are {MOST_REGIONS} already")
        self._memory[message.region] = attach(message.pid, message.descriptor, message.secret, message.nbytes)
        self._attached[message.region] = message

    def buffer(self, spot: wire.Spot, table: Table) -> np.ndarray:
        """The flat buffer of a table at that spot. Raises ProtocolError if it is not wholly in a region."""
        memory, layout = self._memory.get(spot.region), table.terms.layout
        if memory is None or spot.offset % layout.itemsize or spot.offset + layout.nbytes > len(memory):
            raise ProtocolError(f"{spot} is no place for the {layout.nbytes} bytes of table {table.name!r}")
        return memory[spot.offset : spot.offset + layout.nbytes].view(layout.dtype)


def carry_out(
    shard: Shard, job: str, group: int, message: wire.Request, payloads: Sequence[memoryview], regions: Regions
) -> Iterator[Outcome]:
    """Outcomes of a request of a group that is there. Raises what it is refused with: what came before counts."""
    if isinstance(message, wire.Register):
        ticket = Ticket(job, group, message.request)
        yield from shard.register(ticket, message.table, message.terms, message.initialise)
        return
    if not isinstance(message, wire.OfChunks):
        raise ProtocolError(f"{type(message).__name__} is no request of a group")
    ticket = Ticket(job, group, message.request)
    table = shard.table(ticket, message.table)
    chunks = table.chunks(message.start, message.stop)
    if not chunks:
        raise ProtocolError(
            f"no chunk from {message.start} to {message.stop} of table {table.name!r} is on server "
            f"{table.terms.server} of {table.terms.servers}"
        )
    if isinstance(message, wire.ExchangeInPlace):
        yield from _in_place(table, ticket, chunks, message, regions)
        return
    if isinstance(message, wire.Pull):
        # The one small message with a large answer, which waits until it is read.
        nbytes = table.span_bytes(message.start, message.stop)
        shard.check_room(ticket, nbytes, f"the answer to a pull of table {table.name!r}")
        for chunk in chunks:
            yield from table.pull(ticket, chunk)
        return
    if isinstance(message, wire.Initial) and not payloads:
        for chunk in chunks:
            yield from table.initialise(ticket, chunk, None)
        return
    if len(payloads) != len(chunks):
        raise ProtocolError(
            f"{len(chunks)} chunks from {chunks[0]} on of table {table.name!r} came without their values: "
            f"with {len(payloads)} payloads"
        )
    check = table.check_push if isinstance(message, wire.Push) else table.check_payload
    for chunk, payload in zip(chunks, payloads, strict=True):
        check(chunk, payload)
    carry: dict[type, Callable[..., list[Outcome]]] = {
        wire.Initial: table.initialise,
        wire.Exchange: partial(table.exchange, groups=getattr(message, "groups", 1)),
        wire.Push: table.push,
    }
    for chunk, payload in zip(chunks, payloads, strict=True):
        yield from carry[type(message)](ticket, chunk, payload)


def cost_bytes(shard: Shard, job: str, group: int, message: wire.Request, control_bytes: int) -> int:
    """What a request caused: bytes of chunks that were read or written for it, or of a control message, about."""
    if not isinstance(message, wire.OfChunks):
        return _CONTROL_WEIGHT * control_bytes
    table = shard.table(Ticket(job, group, message.request), message.table)
    rows = max(len(message.values), len(message.answers)) if isinstance(message, wire.ExchangeInPlace) else 1
    return rows * table.span_bytes(message.start, message.stop)


def _in_place(
    table: Table, ticket: Ticket, chunks: Sequence[int], message: wire.ExchangeInPlace, regions: Regions
) -> Iterator[Outcome]:
    values = [regions.buffer(spot, table) for spot in message.values]
    answers = [regions.buffer(spot, table) for spot in message.answers]
    for chunk in chunks:
        place = table.place(chunk)
        own, targets = [v[place] for v in values], [a[place] for a in answers]
        yield from table.exchange_in_place(ticket, chunk, own, targets, message.groups)
