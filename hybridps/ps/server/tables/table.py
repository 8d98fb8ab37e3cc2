"""One table of a job on one server: who has joined it, who initialises it, and its chunks. Only the loop uses it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from hybridps.codecs import CODECS
from hybridps.errors import HybridPSError, ProtocolError
from hybridps.memory import private_memory
from hybridps.ps.chunk_map import Span
from hybridps.ps.clocks import BoundedStale
from hybridps.ps.model import Answer, Contribution, Origin, Outcome, TableSpec, Task
from hybridps.ps.rules import warm_up
from hybridps.ps.server.admission import Budget
from hybridps.ps.server.tables.chunk_memory import ChunkMemory
from hybridps.ps.server.tables.progress import Progress
from hybridps.ps.server.tables.registrations import Registrations
from hybridps.ps.server.tables.roles import Role, Root
from hybridps.ps.server.tables.rounds import Chunk


class Table:
    """The chunks of one server. Every call returns what is to be done and who is to be answered, in order.

    A request that comes again counts once. `registrations` says who has joined. `groups` are expected, but for those
    `gone` already. `threads` share the chunks. `refuses`: values with NaN or Inf do not count. The table can be used
    when `prepare` has been carried out; groups that register before wait.
    """

    def __init__(
        self,
        name: str,
        spec: TableSpec,
        groups: int,
        gone: Iterable[int] = (),
        *,
        threads: int = 1,
        refuses: bool = True,
        budget: Budget | None = None,
    ) -> None:
        self.name = name
        self.spec = spec
        self._map = spec.chunk_map()
        self._owned = self._map.owned_by(spec.server)
        self._threads = threads
        self._refuses = refuses
        self._budget = budget or Budget()
        self._arrays: list[np.ndarray] = []
        """The centre and the states of the rule, of all chunks of this server in order."""
        self._chunks: dict[int, Chunk] = {}
        """Those that were used."""
        last = sum(self._map.whole(chunk).length for chunk in self._owned[-1:])
        self.elements = last + max(len(self._owned) - 1, 0) * self._map.step
        """Of this server."""
        self.progress = Progress(spec.clock.start(groups), self.elements)
        for group in gone:
            self.progress.leave(group)
        self.registrations = Registrations(name, not spec.server, len(self._owned), self.progress, groups, gone)
        self._settled: dict[int, int] = {}
        """Of groups, the request before which they have all answers."""

    def prepare(self) -> Task:
        """Compile the rule, and allocate the memory: on a worker, as both may take long."""

        def run() -> list[np.ndarray]:
            warm_up(self.spec.rule, self.spec.layout.dtype)
            nbytes = self.elements * self.spec.layout.itemsize
            return [private_memory(nbytes).view(self.spec.layout.dtype) for _ in range(1 + self._states())]

        return Task(self.owner_of(self.spec.server), run, self._prepared)

    def owner_of(self, chunk: int) -> int:
        """The worker that owns a chunk."""
        return chunk // self.spec.servers % self._threads

    def spans(self, start: int, stop: int) -> list[Span]:
        """What this server owns of elements `start:stop`. Raises ProtocolError for elements that do not exist."""
        if not 0 <= start <= stop <= self.spec.layout.length:
            raise ProtocolError(
                f"elements {start}:{stop} are not within the {self.spec.layout.length} of table {self.name!r}"
            )
        return [*self._map.spans(self.spec.server, start, stop)]

    def whole(self, chunk: int) -> Span:
        """All elements of a chunk."""
        return self._map.whole(chunk)

    @property
    def only_whole_chunks(self) -> bool:
        """Whether parts of chunks cannot be exchanged."""
        return isinstance(self.spec.clock, BoundedStale)

    def count_chunks(self, start: int, stop: int) -> int:
        """How many spans `spans` would return, without making them."""
        return len(self._map.owned_between(self.spec.server, start, min(stop, self.spec.layout.length)))

    def initialise(self, origin: Origin, span: Span, initial: np.ndarray | None) -> list[Outcome]:
        """The initial values of a chunk came; None is zeros."""
        joined = self.registrations
        if origin == joined.initial and span.chunk in joined.initialised:
            return [Answer(origin, span.chunk)] if joined.ready or not self._waits_for_parents else []
        joined.check_initialiser(origin)
        chunk, joined.initial = self._chunk(span.chunk), origin

        def then(result: Any) -> Iterable[Outcome]:
            if isinstance(result, HybridPSError):
                return [Answer(origin, span.chunk, error=result)]
            if origin != joined.initial or span.chunk in joined.initialised:
                return []
            joined.initialised.add(span.chunk)
            return self._take_initial(origin, span.chunk)

        return [Task(chunk.owner, lambda: self._write_initial(chunk, initial), then)]

    def contribute(self, contribution: Contribution) -> list[Outcome]:
        """A group's values of a span came; it is answered when the clock says so."""
        self.registrations.check_usable(contribution.origin)
        if contribution.origin.request < self._settled.get(contribution.origin.group, 0):
            return []  # it came twice, and the group has the answer
        outcomes = self._chunk(contribution.span.chunk).contribute(contribution)
        self.registrations.used = True
        return [*outcomes, *self.registrations.release()] if self.registrations.waits else outcomes

    def pull(self, origin: Origin, span: Span) -> list[Outcome]:
        """A group asks for the centre of a chunk, as it is now."""
        self.registrations.check_usable(origin)
        return [self._chunk(span.chunk).pull(origin)]

    def drop(self, group: int) -> list[Outcome]:
        """A group is done with the table: the others go on without it."""
        self.registrations.drop(group)
        return self._part(group)

    def leave(self, group: int) -> list[Outcome]:
        """A group left the job or is lost: the others go on without it."""
        self.registrations.leave(group)
        return self._part(group)

    def forget(self) -> list[Outcome]:
        """What was brought to rounds under way is given up."""
        return [task for chunk in self._chunks.values() for task in chunk.forget()]

    def freed(self) -> list[Outcome]:
        """All groups have dropped the table."""
        return []

    def settle(self, group: int, request: int) -> None:
        """The group has all answers to its requests before that one."""
        if self.spec.rule.separate and self.registrations.has(group):
            self._settled[group] = request
            for chunk in self._chunks.values():
                chunk.settle(group, request)

    @property
    def _waits_for_parents(self) -> bool:
        return False

    def _states(self) -> int:
        """Arrays that are kept beside the centre."""
        return self.spec.rule.states

    def _make_role(self, chunk: int) -> Role:
        return Root()

    def _write_initial(self, chunk: Chunk, initial: np.ndarray | None) -> None:
        """A worker takes the initial values of a chunk. Raises NotFiniteError."""
        chunk.memory.reset_(initial)

    def _take_initial(self, origin: Origin, chunk: int) -> list[Outcome]:
        """The initial values of one chunk are there; when all are the table is ready."""
        self.registrations.ready = self.registrations.has_initial
        return [Answer(origin, chunk), *self.registrations.release()]

    def _prepared(self, result: Any) -> Iterable[Outcome]:
        if isinstance(result, HybridPSError):
            raise result
        self._arrays, self.registrations.prepared = result, True
        return self.registrations.release()

    def _part(self, group: int) -> list[Outcome]:
        """A group takes part no longer."""
        if not self.registrations.has(group):
            return self.registrations.go_on()
        void = self.progress.members <= {group}  # before it goes: those who wait take part as soon as it has gone
        self.registrations.part(group)
        self._settled.pop(group, None)
        for chunk in self._chunks.values():
            chunk.leave(group)
        outcomes: list[Outcome] = []
        for index, verdict in self.progress.leave(group):
            outcomes += self._chunks[index].carry_out(verdict)
        if void:
            outcomes += self.forget()
        return [*outcomes, *self.registrations.go_on()]

    def _chunk(self, index: int) -> Chunk:
        chunk = self._chunks.get(index)
        return chunk if chunk is not None else self._make_chunk(index)

    def _make_chunk(self, index: int) -> Chunk:
        if index not in self._owned:
            raise ProtocolError(
                f"chunk {index} of table {self.name!r} is not on server {self.spec.server} of {self.spec.servers}"
            )
        span, said = self._map.whole(index), f"chunk {index} of table {self.name!r}"
        first = (index - self.spec.server) // self.spec.servers * self._map.step
        centre, *state = [array[first : first + span.length] for array in self._arrays]
        memory = ChunkMemory(said, span.start, self.spec.rule, centre, state, self._refuses)
        arguments = self.owner_of(index), self.progress, self._budget, self._make_role(index), CODECS[self.spec.codec]
        self._chunks[index] = chunk = Chunk(memory, span, *arguments)
        return chunk
