"""The parameter store of a group's leader: its tables lie on servers, which it talks to over ZeroMQ."""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType, TracebackType
from typing import Any

import msgspec
import numpy as np

from hybridps.config import Settings
from hybridps.errors import ServerError
from hybridps.memory import Layout
from hybridps.ps import wire
from hybridps.ps.chunk_map import Chunk, ChunkMap, check_new, registered_map
from hybridps.ps.clocks import Clock
from hybridps.ps.conversation import Conversation
from hybridps.ps.offers import Offers
from hybridps.ps.pace import Pace
from hybridps.ps.pending import Attachment, Registration, Transfer
from hybridps.ps.rules import Rule
from hybridps.ps.streaming_copy import prepare
from hybridps.ps.terms import Terms

_MESSAGE_BYTES = 4 << 20
"""Small chunks travel together in messages of about this size: each message costs as much as 64 KB of payload."""

_OfChunks = type[wire.Initial] | type[wire.Exchange] | type[wire.Push] | type[wire.Pull]
_InPlace = tuple[tuple[wire.Spot, ...], tuple[wire.Spot, ...]]
"""Where values lie, and where their answers are to be."""


class Client:
    """A group at its servers. Implements `ParameterStore`; also a context manager.

    `addresses` are the servers, in the same order for all groups of the job; `group` is this group's
    index among `groups`. Raises ServerError if a server does not answer within `settings.connect_seconds`,
    or refuses. If that group is there already, waits until it is taken as lost: it may be this group's
    last process, which ended without a word.

    A connection that breaks and comes back is taken up again: what is under way is sent again, and the servers see by
    its number what they had already.
    """

    def __init__(self, addresses: Sequence[str], *, job: str, group: int, groups: int, settings: Settings) -> None:
        if not addresses:
            raise ServerError("no server is given: name one, as in tcp://127.0.0.1:5555")
        self.bytes_to_servers = 0
        """Payload bytes sent so far."""
        self._group = group
        self._chunk_bytes = settings.chunk_bytes
        self._tables: dict[str, ChunkMap] = {}
        self._offers = Offers(self._attach)
        self._paces: dict[tuple[str, int], Pace] = {}
        self._closed = False
        self._talk = Conversation(addresses, job=job, group=group, groups=groups, settings=settings)
        self._servers = range(len(addresses))

    def register(
        self, table: str, layout: Layout, initial: np.ndarray | None, rule: Rule, clock: Clock | None = None
    ) -> bool:
        """As `ParameterStore.register`: the first server says who initialises, the others are told.

        Servers with parents have the parents' centre afterwards, whoever initialised it: then it was there already.
        """
        steps = self.registering(table, layout, initial, rule, clock, self._chunk_bytes)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return bool(end.value)

    def registering(
        self,
        table: str,
        layout: Layout,
        initial: np.ndarray | None,
        rule: Rule,
        clock: Clock | None,
        chunk_bytes: int,
    ) -> Generator[Registration | Transfer, None, bool]:
        """As `register`, but for who does not want to wait: go on when what was yielded is done."""
        self._check_usable()
        rule = check_new(self._tables, table, self._group, rule)
        chunk_map = ChunkMap(layout, chunk_bytes, len(self._servers))
        if initial is not None:
            chunk_map.check_array(initial)
        terms = Terms(layout, rule, clock or rule.clocks[0](), chunk_bytes, 0, len(self._servers))
        terms.check()
        prepare(layout.nbytes)
        first = self._join(0, table, terms, False)
        yield first
        initialise = first.get()
        for registration in [self._join(server, table, terms, initialise) for server in self._servers[1:]]:
            yield registration
            registration.get()
        if initialise:
            # Last to the first server: it lets the other groups in when it has the values.
            for server in reversed(self._servers):
                transfer = self._transfer(wire.Initial, table, chunk_map, chunk_map.owned_by(server), initial, None)
                yield transfer
                transfer.wait()
        self._tables[table] = chunk_map
        return not initialise or self._talk.has_parent

    def exchange(
        self, table: str, values: np.ndarray, answer: np.ndarray, start: int, stop: int, groups: int = 1
    ) -> Transfer:
        """As `ParameterStore.exchange`. Several may be under way.

        If both arrays are in memory that a server can reach, it works there; else `values` are sent. They may be the
        sum of so many `groups`.
        """
        chunk_map = self._map_of(table, values, answer)
        chunks = chunk_map.between(start, stop)
        spots = {server: self._offers.spots(server, [values, answer]) for server in self._servers}
        places = {server: (found[:1], found[1:]) for server, found in spots.items() if found}
        return self._transfer(wire.Exchange, table, chunk_map, chunks, values, answer, places, groups)

    def exchange_rows(self, table: str, rows: Sequence[np.ndarray], start: int, stop: int) -> Transfer | None:
        """As `ParameterStore.exchange_rows`."""
        chunk_map = self._map_of(table, *rows)
        chunks = chunk_map.between(start, stop)
        spots = {server: self._offers.spots(server, rows) for server in self._servers}
        places = {server: (found, found) for server, found in spots.items() if found}
        if len(places) < len(spots):
            return None
        return self._transfer(wire.Exchange, table, chunk_map, chunks, rows[0], None, places)

    def push(self, table: str, values: np.ndarray) -> Transfer:
        """As `ParameterStore.push`. `values` may not change until it is done."""
        chunk_map = self._map_of(table, values)
        return self._transfer(wire.Push, table, chunk_map, chunk_map.chunks, values, None)

    def pull(self, table: str, out: np.ndarray, start: int = 0, stop: int | None = None) -> Transfer:
        """As `ParameterStore.pull`; only those elements, `start` and `stop` as in `exchange`, if they are given."""
        chunk_map = self._map_of(table, out)
        chunks = chunk_map.between(start, chunk_map.layout.length if stop is None else stop)
        return self._transfer(wire.Pull, table, chunk_map, chunks, None, out)

    def wake_by(self, descriptor: int) -> None:
        """Have `listen` return when that descriptor can be read."""
        self._talk.wake_by(descriptor)

    def listen(self, under_way: Iterable[Registration | Transfer]) -> None:
        """Take what the servers say, for who does not wait for one operation alone; return soon, whatever came.

        Raises what has failed, and DeadlineError if one of the operations `under_way` is late.
        """
        self._talk.listen()
        for operation in under_way:
            self._talk.check_late(operation)

    @property
    def has_parent(self) -> bool:
        """Whether the servers are themselves clients of others: rack servers."""
        return self._talk.has_parent

    def close(self) -> None:
        """Leave all tables and release what is held, in bounded time. A second time does nothing."""
        self._end(lost=False)

    def lose(self) -> None:
        """End as a group does that is lost: without a word to the servers, which keep its tables."""
        self._end(lost=True)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _end(self, lost: bool) -> None:
        if not self._closed:
            self._closed = True
            self._talk.close(lost)

    def _join(self, server: int, table: str, terms: Terms, initialise: bool) -> Registration:
        terms = msgspec.structs.replace(terms, server=server)
        request = self._talk.number()

        def finish() -> None:
            self._talk.await_others(lambda: registration.done, registration.what)
            self._talk.settle(request)

        registration = Registration(f"registration of table {table!r} at {self._talk.addresses[server]}", finish)
        self._talk.under_way[request] = registration
        self._talk.send(registration, server, wire.Register(request, table, terms, initialise))
        return registration

    def _attach(self, server: int, region: int, descriptor: int, secret: str, nbytes: int) -> bool:
        """Offer memory to a server; returns whether it works there."""
        request = self._talk.number()
        attachment = Attachment()
        self._talk.under_way[request] = attachment
        self._talk.send(attachment, server, wire.Attach(request, region, os.getpid(), descriptor, secret, nbytes))
        self._talk.await_others(lambda: attachment.done, f"offer of memory to {self._talk.addresses[server]}")
        self._talk.settle(request)
        return attachment.error is None

    def _transfer(
        self,
        kind: _OfChunks,
        table: str,
        chunk_map: ChunkMap,
        chunks: Sequence[Chunk],
        values: np.ndarray | None,
        answer: np.ndarray | None,
        places: Mapping[int, _InPlace] = MappingProxyType({}),
        groups: int = 1,
    ) -> Transfer:
        request = self._talk.number()
        what, first = f"{kind.__name__.lower()} of table {table!r}", chunks[0].index if chunks else 0
        pace = self._paces.setdefault((what, first), Pace())
        more: dict[str, Any] = {"groups": groups} if kind is wire.Exchange else {}

        def finish(transfer: Transfer) -> None:
            try:
                self._talk.await_others(lambda: transfer.done, transfer.what, pace)
                pace.add(time.monotonic() - transfer.began)
            finally:
                self._talk.settle(request)

        of_server = chunk_map.of_servers(chunks)
        in_place = {chunk.index for server, own in of_server.items() if server in places for chunk in own}
        transfer = Transfer(what, chunks, answer, finish, in_place, pace)
        if chunks:
            self._talk.under_way[request] = transfer
        for server, own in of_server.items():
            if server in places:
                span = own[0].index, own[-1].index + 1
                self._talk.send(transfer, server, wire.ExchangeInPlace(request, table, *span, *places[server], **more))
                continue
            for part in _batches(own, chunk_map.layout.itemsize):
                span = part[0].index, part[-1].index + 1
                self._talk.send(transfer, server, kind(request, table, *span, **more), _pieces(values, part))
        if values is not None:
            self.bytes_to_servers += sum(chunk.length for chunk in chunks) * values.itemsize
        return transfer

    def _map_of(self, table: str, *arrays: np.ndarray) -> ChunkMap:
        """The chunks of a registered table, whose layout `arrays` must have."""
        self._check_usable()
        return registered_map(self._tables, table, self._group, arrays)

    def _check_usable(self) -> None:
        if self._closed:
            raise ServerError(f"group {self._group} has left its servers: open a new client")
        if self._talk.failure is not None:
            raise self._talk.failure


def _batches(chunks: Sequence[Chunk], itemsize: int) -> Iterator[Sequence[Chunk]]:
    """Chunks of one server in runs of about a message."""
    most = max(1, _MESSAGE_BYTES // (chunks[0].length * itemsize))
    for begin in range(0, len(chunks), most):
        yield chunks[begin : begin + most]


def _pieces(values: np.ndarray | None, chunks: Sequence[Chunk]) -> Sequence[np.ndarray]:
    return () if values is None else [values[chunk.start : chunk.stop] for chunk in chunks]
