"""The parameter store of a group's leader: its tables lie on servers, which it talks to over ZeroMQ."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from types import MappingProxyType, TracebackType
from typing import Any

import msgspec
import numpy as np

from hybridps.codecs import CODECS
from hybridps.config import Settings
from hybridps.errors import ServerError
from hybridps.memory import Layout, Place
from hybridps.ps import wire
from hybridps.ps.client.operations import Operation, OperationSequence, Sent, Transfer
from hybridps.ps.client.regions import Regions
from hybridps.ps.client.session import Session
from hybridps.ps.client.streaming_copy import prepare
from hybridps.ps.client.table import Table
from hybridps.ps.clocks import Clock
from hybridps.ps.model import CodecName, Joining, TableSpec
from hybridps.ps.rules import Rule
from hybridps.ps.store import check_new, registered

_EXACT = CODECS["exact"]
"""The centre is not rounded: neither its initial values nor what is pulled."""

_InPlace = tuple[tuple[wire.Spot, ...], tuple[wire.Spot, ...]]
"""Where the values are, and where their answers go."""


class Client:
    """A group at its servers. Implements `ParameterStore`; also a context manager.

    `addresses` are the servers, in the same order for all groups of the job; `group` is this group's index among
    `groups`. Raises ServerError if a server does not answer within `settings.connect_seconds`, or refuses. If that
    group is there already, waits until it is lost: it may be the last process of this group, which ended without
    leaving. `context`: a ZeroMQ context to use, which the caller closes; servers at `inproc://` share one.

    A connection that breaks is restored. What is under way is then sent again, and the servers see by its number what
    they had already.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        job: str,
        group: int,
        groups: int,
        settings: Settings,
        context: Any = None,
    ) -> None:
        if not addresses:
            raise ServerError("no server is given: name one, as in tcp://127.0.0.1:5555")
        self.bytes_to_servers = 0
        """Payload bytes sent so far."""
        self._group = group
        self._chunk_bytes = settings.chunk_bytes
        self._tables: dict[str, Table] = {}
        self._regions = Regions(self._offer, self._withdraw)
        self._closed = False
        self._session = Session(addresses, job=job, group=group, groups=groups, settings=settings, context=context)
        self._servers = range(len(addresses))

    @property
    def has_parent(self) -> bool:
        """Whether the servers are themselves clients of others: rack servers."""
        return self._session.has_parent

    def register(
        self,
        table: str,
        layout: Layout,
        initial: np.ndarray | None,
        rule: Rule,
        clock: Clock | None = None,
        codec: CodecName = "exact",
    ) -> Joining:
        """As `ParameterStore.register`: the first server says who initialises, the others are told.

        Servers with parents have the parents' centre afterwards, whoever initialised it: the table is `LATE`.
        """
        return self.begin_register(table, layout, initial, rule, clock, codec).wait()

    def begin_register(
        self,
        table: str,
        layout: Layout,
        initial: np.ndarray | None,
        rule: Rule,
        clock: Clock | None = None,
        codec: CodecName = "exact",
        chunk_bytes: int | None = None,
    ) -> OperationSequence[Joining]:
        """As `register`, for a caller that has other operations under way."""
        self._check_usable()
        rule = check_new(self._tables, table, self._group, rule)
        chunk_bytes = chunk_bytes or self._chunk_bytes
        spec = TableSpec(layout, rule, clock or rule.clocks[0](), chunk_bytes, 0, len(self._servers), codec)
        spec.check()
        joined = Table(table, spec)
        if initial is not None:
            joined.chunk_map.check_array(initial)
        prepare(layout.nbytes)
        if not joined.codec.exact:
            joined.codec.prepare()
        return OperationSequence(self._register(joined, spec, initial))

    def exchange(
        self, table: str, values: np.ndarray, answer: np.ndarray, start: int, stop: int, groups: int = 1
    ) -> Operation:
        """As `ParameterStore.exchange`. Several may be under way.

        A server that reaches the memory of both arrays works there; else `values` are sent. They may be the sum of
        the contributions of so many `groups`.
        """
        known = self._table(table, values, answer)
        spots = self._regions.spots(self._servers, [values, answer]) if known.codec.exact else {}
        places = {server: (found[:1], found[1:]) for server, found in spots.items()}
        return self._exchange(known, values, answer, start, stop, places, groups)

    def exchange_rows(self, table: str, rows: Sequence[np.ndarray], start: int, stop: int) -> Operation | None:
        """As `ParameterStore.exchange_rows`."""
        known = self._table(table, *rows)
        if not known.codec.exact or len(rows) > wire.MOST_ROWS:
            return None
        spots = self._regions.spots(self._servers, rows)
        if len(spots) < len(self._servers):
            return None
        return self._exchange(known, rows[0], None, start, stop, {server: (at, at) for server, at in spots.items()})

    def pull(self, table: str, out: np.ndarray, start: int = 0, stop: int | None = None) -> Operation:
        """As `ParameterStore.pull`; only of elements `start:stop`, which are whole chunks, if they are given."""
        known = self._table(table, out)
        stop = known.chunk_map.layout.length if stop is None else stop
        known.chunk_map.check_span(start, stop)
        return self._transfer(wire.Pull, known, start, stop, None, out)

    def drop(self, table: str) -> None:
        """As `ParameterStore.drop`. Exchanges of the table that are under way fail."""
        self._table(table).give_up()
        del self._tables[table]
        self._ask(f"drop of table {table!r}", self._servers, lambda request, _: wire.Drop(request, table)).wait()

    def wake_by(self, descriptor: int) -> None:
        """Have `listen` return when that descriptor can be read."""
        self._session.wake_by(descriptor)

    def listen(self, under_way: Iterable[Operation | OperationSequence[Any]]) -> None:
        """Receive what the servers send, for a caller that waits for several operations; return soon in any case.

        Raises the error that ended the session, or DeadlineError if one of the operations `under_way` is late.
        """
        self._session.listen()
        for each in under_way:
            operation = each.current if isinstance(each, OperationSequence) else each
            if operation is not None:
                self._session.check_late(operation)

    def close(self) -> None:
        """Leave all tables and release what is held, in bounded time. A second time does nothing."""
        self._end(lost=False)

    def lose(self) -> None:
        """End as a group does that is lost: without telling the servers, which keep its tables."""
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
            self._session.close(lost)

    def _register(
        self, table: Table, spec: TableSpec, initial: np.ndarray | None
    ) -> Generator[Operation, None, Joining]:
        """Register at the first server, then at the others, and initialise the centre if this group is to do it."""
        first = self._ask_to_join(table, spec, self._servers[:1], False)
        yield first
        first.wait()
        told = _registered(first)
        initialise = any(each.initialise for each in told)
        others = self._ask_to_join(table, spec, self._servers[1:] if not told[0].dropped else (), initialise)
        yield others
        others.wait()
        told += _registered(others)
        if any(each.dropped for each in told):
            there = [server for server, each in enumerate(told) if not each.dropped]
            left = self._ask(f"drop of table {table.name!r}", there, lambda request, _: wire.Drop(request, table.name))
            yield left
            left.wait()
            return Joining.DROPPED
        # The first server comes last: it lets the other groups in when it has the values.
        for servers in (self._servers[1:], self._servers[:1]) if initialise else ():
            length = table.chunk_map.layout.length
            transfer = self._transfer(wire.Initial, table, 0, length, initial, None, servers=servers)
            yield transfer
            transfer.wait()
        self._tables[table.name] = table
        return Joining.NEW if initialise and not self._session.has_parent else Joining.LATE

    def _ask_to_join(self, table: Table, spec: TableSpec, servers: Sequence[int], initialise: bool) -> Operation:
        what, at = f"registration of table {table.name!r}", msgspec.structs.replace
        return self._ask(what, servers, lambda n, s: wire.Register(n, table.name, at(spec, server=s), initialise))

    def _offer(self, server: int, region: int, place: Place) -> bool:
        """Offer memory to a server; returns whether the server works there."""

        what, memory = f"offer of memory to {self._session.addresses[server]}", (place.descriptor, place.secret)
        offer = self._ask(what, [server], lambda n, _: wire.Attach(n, region, os.getpid(), *memory, place.nbytes))
        self._session.finish(offer)
        return offer.error is None

    def _withdraw(self, server: int, region: int) -> None:
        self._ask("withdrawal of memory", [server], lambda request, _: wire.Detach(request, region)).wait()

    def _ask(self, what: str, servers: Sequence[int], message: Callable[[int, int], Any]) -> Operation:
        """Send a request without payload to some servers."""
        request = self._session.number()
        operation = Operation(what, request, servers, self._session.pace(what), self._session.finish)
        self._session.begin(operation)
        for server in servers:
            self._session.send(operation, Sent(server, message(request, server), (), (server,)))
        return operation

    def _exchange(
        self,
        table: Table,
        values: np.ndarray,
        answer: np.ndarray | None,
        start: int,
        stop: int,
        places: Mapping[int, _InPlace],
        groups: int = 1,
    ) -> Transfer:
        table.chunk_map.check_span(start, stop)
        table.check_free(start, stop)
        transfer = self._transfer(wire.Exchange, table, start, stop, values, answer, places, groups=groups)
        table.begin(start, stop, transfer)
        self.bytes_to_servers += table.codec.nbytes(stop - start, values.dtype)
        return transfer

    def _transfer(
        self,
        kind: type[wire.Initial] | type[wire.Exchange] | type[wire.Pull],
        table: Table,
        start: int,
        stop: int,
        values: np.ndarray | None,
        answer: np.ndarray | None,
        places: Mapping[int, _InPlace] = MappingProxyType({}),
        servers: Sequence[int] | None = None,
        **more: Any,
    ) -> Transfer:
        """Send the messages of a request for elements `start:stop` to the servers that own some of them."""
        what, request, name = f"{kind.__name__.lower()} of table {table.name!r}", self._session.number(), table.name
        servers = self._servers if servers is None else servers
        codec = table.codec if kind is wire.Exchange else _EXACT
        owned = {server: [*table.batches(server, start, stop, server in places)] for server in servers}

        def finish(operation: Operation) -> None:
            try:
                self._session.finish(operation)
            finally:
                table.end(start, stop, operation)

        chunks = (chunk for batches in owned.values() for batch in batches for chunk in batch.chunks)
        into: dict[str, Any] = {"answer": answer, "codec": codec, "in_place": places.keys()}
        into["span"] = start, stop, table.chunk_map.step
        transfer = Transfer(what, request, chunks, self._session.pace(what), finish, **into)
        self._session.begin(transfer)
        for server, batches in owned.items():
            for batch in batches:
                edges = batch.start, batch.stop
                message: wire.OfSpan
                payloads: Sequence[np.ndarray] = ()
                if server in places:
                    message = wire.ExchangeInPlace(request, name, *edges, *places[server], **more)
                else:
                    message = kind(request, name, *edges, **more)
                    payloads = () if values is None else table.payloads(values, batch, codec)
                self._session.send(transfer, Sent(server, message, payloads, batch.chunks))
        return transfer

    def _table(self, name: str, *arrays: np.ndarray) -> Table:
        """A registered table, whose layout `arrays` must have (else LayoutError)."""
        self._check_usable()
        table = registered(self._tables, name, self._group)
        for array in arrays:
            table.chunk_map.check_array(array)
        return table

    def _check_usable(self) -> None:
        if self._closed:
            raise ServerError(f"group {self._group} has left its servers: open a new client")
        if self._session.failure is not None:
            raise self._session.failure


def _registered(operation: Operation) -> list[wire.Registered]:
    """The servers' answers to a registration, in the order of the servers."""
    answers = [operation.answers[server] for server in sorted(operation.answers)]
    return [answer for answer in answers if isinstance(answer, wire.Registered)]
