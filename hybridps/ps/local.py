"""A parameter store in one process, for several groups that are its threads: for tests, and to debug a job."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType

import numpy as np

from hybridps.config import Settings
from hybridps.errors import DeadlineError, HybridPSError, ServerError
from hybridps.memory import Layout
from hybridps.ps.chunk_map import Chunk, ChunkMap, check_new, registered_map
from hybridps.ps.clocks import Clock
from hybridps.ps.pending import Registration, Transfer
from hybridps.ps.rules import Rule
from hybridps.ps.shard import Shard
from hybridps.ps.table import Table
from hybridps.ps.terms import Done, Joined, Outcome, Terms, Ticket, Up, Work


class LocalServer:
    """What the stores of one process share."""

    def __init__(self) -> None:
        self.shard = Shard()
        self.changed = threading.Condition()
        """Held during every call of `shard`; notified when something is done."""
        self.under_way: dict[Ticket, Registration | Transfer] = {}

    @contextmanager
    def calls(self, ticket: Ticket, operation: Registration | Transfer) -> Iterator[None]:
        """Hold the lock for calls of `shard` whose answers go to `operation`."""
        with self.changed:
            self.under_way[ticket] = operation
            try:
                yield
            except BaseException:
                del self.under_way[ticket]
                raise

    def tell(self, outcomes: list[Outcome]) -> None:
        """Hand on the answers while the lock is held."""
        for outcome in outcomes:
            if isinstance(outcome, Work):
                outcome.run()
                self.tell([*outcome.done])
                continue
            if isinstance(outcome, Up):
                continue  # a local server has no parents
            operation = self.under_way.get(outcome.ticket)
            match outcome, operation:
                case Joined(initialise=initialise), Registration():
                    operation.initialise = initialise
                case Done(error=HybridPSError() as error), Transfer():
                    operation.error = error
                case Done(chunk=chunk, values=values), Transfer():
                    operation.take([chunk], [] if values is None else [values.view(np.uint8).data])
        self.changed.notify_all()


class LocalStore:
    """One group of a job at a `LocalServer`. Implements `ParameterStore`; used by one thread at a time."""

    bytes_to_servers = 0
    """Nothing is sent."""

    def __init__(self, server: LocalServer, *, job: str, group: int, groups: int, settings: Settings) -> None:
        self._server = server
        self._job = job
        self._group = group
        self._settings = settings
        self._tables: dict[str, ChunkMap] = {}
        self._requests = itertools.count()
        with server.changed:
            server.shard.enter(job, group, groups)
        self._closed = False

    def register(
        self, table: str, layout: Layout, initial: np.ndarray | None, rule: Rule, clock: Clock | None = None
    ) -> bool:
        """As `ParameterStore.register`."""
        self._check_open()
        rule = check_new(self._tables, table, self._group, rule)
        chunk_map = ChunkMap(layout, self._settings.chunk_bytes, servers=1)
        if initial is not None:
            chunk_map.check_array(initial)
        terms = Terms(layout, rule, clock or rule.clocks[0](), self._settings.chunk_bytes, server=0, servers=1)
        initialise = self._join(table, terms).get()
        if initialise:
            self._initialise(table, chunk_map.chunks, initial).wait()
        self._tables[table] = chunk_map
        return not initialise

    def exchange(self, table: str, values: np.ndarray, answer: np.ndarray, start: int, stop: int) -> Transfer:
        """As `ParameterStore.exchange`. The server works in place."""
        return self._exchange(table, [values], [answer], start, stop)

    def exchange_rows(self, table: str, rows: Sequence[np.ndarray], start: int, stop: int) -> Transfer:
        """As `ParameterStore.exchange_rows`: they are always reached."""
        return self._exchange(table, rows, rows, start, stop)

    def push(self, table: str, values: np.ndarray) -> Transfer:
        """As `ParameterStore.push`."""

        def send(ticket: Ticket, chunk: Chunk) -> list[Outcome]:
            there, piece = self._table(ticket, table), values[chunk.start : chunk.stop].copy()
            there.check_push(chunk.index, piece)
            return there.push(ticket, chunk.index, piece)

        return self._transfer(f"push of table {table!r}", self._map_of(table, values).chunks, None, send)

    def pull(self, table: str, out: np.ndarray) -> Transfer:
        """As `ParameterStore.pull`."""

        def ask(ticket: Ticket, chunk: Chunk) -> list[Outcome]:
            return self._table(ticket, table).pull(ticket, chunk.index)

        return self._transfer(f"pull of table {table!r}", self._map_of(table, out).chunks, out, ask)

    def close(self) -> None:
        """As `ParameterStore.close`. A second time does nothing."""
        self._end(lost=False)

    def lose(self) -> None:
        """End as a group does that is lost: without a word to the others."""
        self._end(lost=True)

    def __enter__(self) -> LocalStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _end(self, lost: bool) -> None:
        if self._closed:
            return
        self._closed = True
        with self._server.changed:
            self._server.tell(self._server.shard.leave(self._job, self._group, lost))

    def _join(self, table: str, terms: Terms) -> Registration:
        ticket = self._ticket()
        registration = Registration(f"registration of table {table!r}", lambda: self._finish(ticket, registration))
        with self._server.calls(ticket, registration):
            self._server.tell(self._server.shard.register(ticket, table, terms))
        return registration

    def _initialise(self, table: str, chunks: Sequence[Chunk], initial: np.ndarray | None) -> Transfer:
        def send(ticket: Ticket, chunk: Chunk) -> list[Outcome]:
            piece = None if initial is None else initial[chunk.start : chunk.stop]
            return self._table(ticket, table).initialise(ticket, chunk.index, piece)

        return self._transfer(f"initial of table {table!r}", chunks, None, send)

    def _exchange(
        self, table: str, rows: Sequence[np.ndarray], targets: Sequence[np.ndarray], start: int, stop: int
    ) -> Transfer:
        chunks = self._map_of(table, *rows, *targets).between(start, stop)

        def send(ticket: Ticket, chunk: Chunk) -> list[Outcome]:
            place = slice(chunk.start, chunk.stop)
            there = self._table(ticket, table)
            return there.exchange_in_place(
                ticket, chunk.index, [row[place] for row in rows], [target[place] for target in targets]
            )

        return self._transfer(f"exchange of table {table!r}", chunks, None, send)

    def _transfer(
        self,
        what: str,
        chunks: Sequence[Chunk],
        answer: np.ndarray | None,
        send: Callable[[Ticket, Chunk], list[Outcome]],
    ) -> Transfer:
        """Send chunk by chunk; what is refused is told by `wait`, as over a network."""
        ticket = self._ticket()
        transfer = Transfer(what, chunks, answer, lambda transfer: self._finish(ticket, transfer))
        try:
            for chunk in chunks:
                with self._server.calls(ticket, transfer):
                    self._server.tell(send(ticket, chunk))
        except HybridPSError as error:
            transfer.error = error
        return transfer

    def _finish(self, ticket: Ticket, operation: Registration | Transfer) -> None:
        seconds = self._settings.deadline_seconds
        with self._server.changed:
            came = self._server.changed.wait_for(lambda: operation.done, seconds)
            self._server.under_way.pop(ticket, None)
        if not came:
            raise DeadlineError(
                f"the {operation.what} is not done after {seconds:g} s: another group has not come so far; "
                "look at what it does, or raise HYBRIDPS_DEADLINE_SECONDS"
            )

    def _table(self, ticket: Ticket, name: str) -> Table:
        return self._server.shard.table(ticket, name)

    def _ticket(self) -> Ticket:
        return Ticket(self._job, self._group, next(self._requests))

    def _map_of(self, table: str, *arrays: np.ndarray) -> ChunkMap:
        """The chunks of a registered table, whose layout `arrays` must have."""
        self._check_open()
        return registered_map(self._tables, table, self._group, arrays)

    def _check_open(self) -> None:
        if self._closed:
            raise ServerError(f"group {self._group} has left its server: open a new store")
