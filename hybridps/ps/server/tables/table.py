"""One table of a job on one server: who has joined it, who initialises it, and its chunks. Only the loop uses it."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any

import numpy as np

from hybridps.codecs import codec_of
from hybridps.errors import HybridPSError, ProtocolError, ServerError
from hybridps.memory import private_memory
from hybridps.ps.chunk_map import Span
from hybridps.ps.model import Answer, ChunkPlace, Origin, Outcome, Rules, TableSpec, Task
from hybridps.ps.server.admission import Budget
from hybridps.ps.server.tables.chunk_memory import ChunkMemory
from hybridps.ps.server.tables.registrations import Registrations
from hybridps.ps.server.tables.rounds import Chunk


class Table:
    """The chunks of one server, of a table of `job` that is to have `members`. `registrations`: who has joined.

    Calls return what is to be done and who is to be answered, in order. A request that comes again counts once.
    `threads` share the chunks. `refuses`: values with NaN or Inf do not count.
    """

    more_arrays = 0
    """Arrays of all elements beside the centre and the states of the rule."""

    def __init__(
        self,
        job: str,
        name: str,
        spec: TableSpec,
        members: Set[int],
        threads: int,
        refuses: bool,
        budget: Budget,
    ) -> None:
        self.job = job
        self.name = name
        self.spec = spec
        self.chunk_map = spec.chunk_map()
        self._owned = self.chunk_map.owned_between(spec.server, 0, spec.layout.length)
        self._threads = threads
        self._refuses = refuses
        self._budget = budget
        last = sum(self.chunk_map.whole(chunk).length for chunk in self._owned[-1:])
        self.elements = last + max(len(self._owned) - 1, 0) * self.chunk_map.step
        """Of this server."""
        nbytes = self.elements * spec.layout.itemsize
        self._arrays = [private_memory(nbytes).view(spec.layout.dtype) for _ in range(1 + self._states())]
        """The centre and the states of the rule, of all chunks of this server in order."""
        self._chunks: dict[int, Chunk] = {}
        """Those that were used."""
        self.rounds = spec.clock.start(members)
        self.registrations = Registrations(name, not spec.server, len(self._owned), self.rounds)

    def owner_of(self, chunk: int) -> int:
        """The worker that owns a chunk."""
        return self.chunk_map.thread_of(chunk, self._threads)

    @property
    def only_whole_chunks(self) -> bool:
        """Whether parts of chunks cannot be exchanged."""
        return self.spec.rule.whole_chunks

    def check_rules(self, rules: Rules, start: int, stop: int) -> None:
        """Raise ProtocolError unless these can be the rules of elements `start:stop` for an exchange."""
        ends = [start, *(end for end, _ in rules)]
        if ends != sorted(set(ends)) or ends[-1] != stop:
            raise ProtocolError(f"the rules of elements {start}:{stop} of table {self.name!r} are not in order")
        other = next((rule for _, rule in rules if type(rule) is not type(self.spec.rule)), None)
        if other is not None:
            raise ProtocolError(f"table {self.name!r} has the rule {self.spec.rule}, and a message has {other}")

    def check_array(self, number: int) -> None:
        """Raise ServerError unless the chunks have such an array: the centre (0), or a state of the rule."""
        if number > self.spec.rule.states:
            raise ServerError(
                f"table {self.name!r} has no state {number}: its rule, {type(self.spec.rule).__name__}, keeps "
                f"{self.spec.rule.states}"
            )

    def chunk(self, index: int) -> Chunk:
        """A chunk, for a group that may use the table. Raises ProtocolError if this server does not own it."""
        chunk = self._chunks.get(index)
        if chunk is not None:
            return chunk
        if index not in self._owned:
            raise ProtocolError(
                f"chunk {index} of table {self.name!r} is not on server {self.spec.server} of {self.spec.servers}"
            )
        span, place = self.chunk_map.whole(index), ChunkPlace(self.job, self.name, index)
        first = self._owned.index(index) * self.chunk_map.step
        centre, *state = [array[first : first + span.length] for array in self._arrays]
        shape, nbytes = self.spec.shape_of(span), self._arrays[0].nbytes
        memory = ChunkMemory(place, span.start, self.spec.rule, centre, state, self._refuses, shape, nbytes)
        options = self.owner_of(index), self.registrations, self._budget, codec_of(self.spec.codec).answers
        self._chunks[index] = chunk = self._make_chunk(memory, span, *options)
        return chunk

    def initialise(self, origin: Origin, span: Span, initial: np.ndarray | None) -> Sequence[Outcome]:
        """The initial values of a chunk came; None is zeros."""
        joined = self.registrations
        if origin == joined.initial and span.chunk in joined.initialised:
            return self._take_initial(origin, span.chunk)
        joined.check_initialiser(origin)
        chunk, joined.initial = self.chunk(span.chunk), origin

        def then(result: Any) -> Sequence[Outcome]:
            if isinstance(result, HybridPSError):
                return [Answer(origin, None, error=result)]  # without these values nobody is let in
            if origin != joined.initial or span.chunk in joined.initialised:
                return []
            joined.initialised.add(span.chunk)
            return self._take_initial(origin, span.chunk)

        return [Task(chunk.owner, lambda: self._write_initial(chunk, initial), then)]

    def leave(self, group: int, drops: bool = False, returns: bool = False) -> list[Outcome]:
        """A group has left the job, is lost, or `drops` the table: the others go on without it, until it `returns`."""
        void = self.rounds.members <= {group}  # before it goes: those who wait take part as soon as it has gone
        self.registrations.leave(group, drops, returns)
        for chunk in self._chunks.values():
            chunk.leave(group)
        outcomes: list[Outcome] = []
        for index, verdict in self.rounds.leave(group):
            outcomes += self._chunks[index].carry_out(verdict)
        for chunk in self._chunks.values() if void else ():
            chunk.forget()
        return [*outcomes, *self.registrations.release()]

    def free(self) -> list[Outcome]:
        """The table is not used any more; its memory is released."""
        for chunk in self._chunks.values():
            chunk.forget()
        self._chunks.clear()
        return []

    def settle(self, group: int, request: int) -> None:
        """The group has all answers to its requests before that one."""
        if self.spec.rule.separate:
            for chunk in self._chunks.values():
                chunk.settle(group, request)

    def _states(self) -> int:
        """Arrays that are kept beside the centre."""
        return self.spec.rule.states

    def _make_chunk(self, *arguments: Any) -> Chunk:
        return Chunk(*arguments)

    def _write_initial(self, chunk: Chunk, initial: np.ndarray | None) -> None:
        """A worker takes the initial values of a chunk. Raises NotFiniteError."""
        chunk.memory.reset_(initial)

    def _take_initial(self, origin: Origin, chunk: int) -> Sequence[Outcome]:
        """The initial values of one chunk are there; when all are the table is ready."""
        self.registrations.ready = self.registrations.has_initial
        return [Answer(origin, chunk), *self.registrations.release()]
