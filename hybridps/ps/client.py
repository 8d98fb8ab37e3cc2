"""The parameter store of a group's leader: its tables lie on servers, which it talks to over ZeroMQ."""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Callable, Sequence
from types import TracebackType

import numpy as np

from hybridps.config import Settings
from hybridps.errors import DeadlineError, HybridPSError, ProtocolError, ServerError
from hybridps.memory import Layout
from hybridps.ps import wire
from hybridps.ps.chunk_map import Chunk, ChunkMap, registered_map
from hybridps.ps.heartbeat import Heart
from hybridps.ps.links import Incoming, Links
from hybridps.ps.pending import Registration, Transfer
from hybridps.ps.rules import AnyRule, Rule
from hybridps.ps.shard import GroupTakenError
from hybridps.ps.table import Terms

_LEAVE_SECONDS = 2.0

_OfChunk = type[wire.Initial] | type[wire.Exchange] | type[wire.Push] | type[wire.Pull]


class Client:
    """A group at its servers. Implements `ParameterStore`; also a context manager.

    `addresses` are the servers, in the same order for all groups of the job; `group` is this group's
    index among `groups`. Raises ServerError if a server does not answer within `settings.connect_seconds`,
    or refuses. If that group is there already, waits until it is taken as lost: it may be this group's
    last process, which ended without a word.
    """

    def __init__(self, addresses: Sequence[str], *, job: str, group: int, groups: int, settings: Settings) -> None:
        if not addresses:
            raise ServerError("no server is given: name one, as in tcp://127.0.0.1:5555")
        self.bytes_to_servers = 0
        """Payload bytes sent so far."""
        self._settings = settings
        self._group = group
        self._tables: dict[str, ChunkMap] = {}
        self._under_way: dict[int, Registration | Transfer] = {}
        self._requests = itertools.count()
        self._welcomed: set[int] = set()
        self._left: set[int] = set()
        self._failure: HybridPSError | None = None
        self._closed = False
        self._heart: Heart | None = None
        self._links = Links(addresses)
        try:
            self._greet_all(wire.Hello(wire.VERSION, secrets.randbits(62), job, group, groups))
        except BaseException:
            self.close()
            raise

    def register(self, table: str, layout: Layout, initial: np.ndarray | None, rule: Rule) -> bool:
        """As `ParameterStore.register`: the first server says who initialises, the others are told."""
        self._check_usable()
        if table in self._tables:
            raise ServerError(f"table {table!r} is registered already by group {self._group}: register it once")
        if not isinstance(rule, AnyRule):
            raise ServerError(f"the rule {rule!r} is unknown to servers: use one of hybridps.ps.rules")
        chunk_map = ChunkMap(layout, self._settings.chunk_bytes, len(self._links))
        if initial is not None:
            chunk_map.check_array(initial)
        initialise = self._join(0, table, layout, rule, False).get()
        joining = [self._join(server, table, layout, rule, initialise) for server in range(1, len(self._links))]
        for registration in joining:
            registration.get()
        if initialise:
            self._initialise(table, chunk_map, initial)
        self._tables[table] = chunk_map
        return not initialise

    def exchange(self, table: str, values: np.ndarray, answer: np.ndarray, start: int, stop: int) -> Transfer:
        """As `ParameterStore.exchange`. Several may be under way; `values` are sent from where they lie."""
        chunk_map = self._map_of(table, values, answer)
        chunks = chunk_map.between(start, stop)
        return self._transfer(wire.Exchange, table, chunk_map, chunks, values, answer)

    def push(self, table: str, values: np.ndarray) -> Transfer:
        """As `ParameterStore.push`. `values` may not change until it is done."""
        chunk_map = self._map_of(table, values)
        return self._transfer(wire.Push, table, chunk_map, chunk_map.chunks, values, None)

    def pull(self, table: str, out: np.ndarray) -> Transfer:
        """As `ParameterStore.pull`."""
        chunk_map = self._map_of(table, out)
        return self._transfer(wire.Pull, table, chunk_map, chunk_map.chunks, None, out)

    def close(self) -> None:
        """Leave all tables and release what is held, in bounded time. A second time does nothing."""
        if self._closed:
            return
        self._closed = True
        try:
            self._leave()
        finally:
            if self._heart is not None:
                self._heart.stop()
            self._links.close(linger_seconds=0.0 if self._left >= self._welcomed else 0.1)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _greet_all(self, hello: wire.Hello) -> None:
        for server in range(len(self._links)):
            self._greet(server, hello)
        settings = self._settings
        self._heart = Heart(
            self._links.context,
            self._links.addresses,
            hello.session,
            settings.heartbeat_seconds,
            settings.lost_seconds,
        )

    def _greet(self, server: int, hello: wire.Hello) -> None:
        patience = time.monotonic() + self._settings.lost_seconds + self._settings.connect_seconds
        while server not in self._welcomed:
            self._links.send(server, hello)
            try:
                self._until(lambda: server in self._welcomed, self._settings.connect_seconds, self._silence(server))
            except GroupTakenError:
                if time.monotonic() > patience:
                    raise
                self._failure = None
                time.sleep(min(self._settings.heartbeat_seconds, self._settings.lost_seconds / 4))

    def _silence(self, server: int) -> ServerError:
        return ServerError(
            f"no answer from {self._links.addresses[server]} within {self._settings.connect_seconds:g} s: "
            "is `hybridps serve` running there?"
        )

    def _join(self, server: int, table: str, layout: Layout, rule: AnyRule, initialise: bool) -> Registration:
        terms = Terms(layout, rule, self._settings.chunk_bytes, server, len(self._links))
        request = next(self._requests)

        def finish() -> None:
            self._until(lambda: registration.received, self._settings.connect_seconds, self._silence(server))
            self._until(lambda: registration.done, self._settings.deadline_seconds, self._late(registration.what))
            del self._under_way[request]

        registration = Registration(f"registration of table {table!r} at {self._links.addresses[server]}", finish)
        self._under_way[request] = registration
        self._links.send(server, wire.Register(request, table, terms, initialise))
        return registration

    def _initialise(self, table: str, chunk_map: ChunkMap, initial: np.ndarray | None) -> None:
        """Send the initial values, last to the first server: it lets the other groups in when it has them."""
        for server in reversed(range(len(self._links))):
            self._transfer(wire.Initial, table, chunk_map, chunk_map.owned_by(server), initial, None).wait()

    def _transfer(
        self,
        kind: _OfChunk,
        table: str,
        chunk_map: ChunkMap,
        chunks: Sequence[Chunk],
        values: np.ndarray | None,
        answer: np.ndarray | None,
    ) -> Transfer:
        request = next(self._requests)

        def finish(transfer: Transfer) -> None:
            try:
                self._until(lambda: transfer.done, self._settings.deadline_seconds, self._late(transfer.what))
            finally:
                self._under_way.pop(request, None)

        transfer = Transfer(f"{kind.__name__.lower()} of table {table!r}", chunks, answer, finish)
        if chunks:
            self._under_way[request] = transfer
        for chunk in chunks:
            piece = None if values is None else values[chunk.start : chunk.stop]
            self._links.send(chunk_map.servers[chunk.index], kind(request, table, chunk.index), piece)
            self.bytes_to_servers += 0 if piece is None else piece.nbytes
        return transfer

    def _late(self, what: str) -> DeadlineError:
        return DeadlineError(
            f"the {what} is not done after {self._settings.deadline_seconds:g} s: another group has not come so far; "
            "look at what it does, or raise HYBRIDPS_DEADLINE_SECONDS"
        )

    def _until(self, done: Callable[[], bool], seconds: float, late: HybridPSError) -> None:
        """Take what the servers say until `done`, or raise `late` after `seconds`, or at once what has failed."""
        deadline = time.monotonic() + seconds
        while not done():
            if self._failure is not None:
                raise self._failure
            if self._heart is not None:
                self._heart.check()
            left = deadline - time.monotonic()
            if left <= 0:
                raise late
            for incoming in self._links.receive(min(left, self._settings.heartbeat_seconds)):
                self._take(incoming)

    def _take(self, incoming: Incoming) -> None:
        answer = incoming.answer
        if isinstance(answer, wire.Welcome):
            self._welcomed.add(incoming.server)
        elif isinstance(answer, wire.Left):
            self._left.add(incoming.server)
        elif isinstance(answer, wire.Refused):
            self._take_refusal(answer, self._links.addresses[incoming.server])
        elif isinstance(answer, (wire.Received, wire.Registered, wire.Done)):
            self._take_result(answer, incoming.payload)

    def _take_refusal(self, refused: wire.Refused, address: str) -> None:
        error = wire.error_of(refused, address)
        if refused.request is None:
            self._failure = error
            return
        operation = self._under_way.get(refused.request)
        if operation is not None and operation.error is None:
            operation.error = error

    def _take_result(self, answer: wire.Received | wire.Registered | wire.Done, payload: memoryview | None) -> None:
        """An answer to an operation that was given up has no operation, and is dropped."""
        operation = self._under_way.get(answer.request)
        if isinstance(operation, Registration):
            operation.received = True
            if isinstance(answer, wire.Registered):
                operation.initialise = answer.initialise
        elif isinstance(operation, Transfer) and isinstance(answer, wire.Done):
            operation.take(answer.chunk, payload)

    def _leave(self) -> None:
        """Tell the servers, and wait a moment for their answers, so that they do not take the group as lost."""
        for server in self._welcomed:
            self._links.send(server, wire.Leave())
        deadline = time.monotonic() + min(_LEAVE_SECONDS, self._settings.connect_seconds)
        while not self._left >= self._welcomed and time.monotonic() < deadline:
            try:
                if self._heart is not None:
                    self._heart.check()
                for incoming in self._links.receive(min(deadline - time.monotonic(), self._settings.heartbeat_seconds)):
                    if isinstance(incoming.answer, wire.Left):
                        self._left.add(incoming.server)
                    elif isinstance(incoming.answer, wire.Refused) and incoming.answer.request is None:
                        return
            except ProtocolError:
                continue
            except ServerError:
                return

    def _map_of(self, table: str, *arrays: np.ndarray) -> ChunkMap:
        """The chunks of a registered table, whose layout `arrays` must have."""
        self._check_usable()
        return registered_map(self._tables, table, self._group, arrays)

    def _check_usable(self) -> None:
        if self._closed:
            raise ServerError(f"group {self._group} has left its servers: open a new client")
        if self._failure is not None:
            raise self._failure
