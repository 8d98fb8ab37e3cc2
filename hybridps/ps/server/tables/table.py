"""One table of a job on one server: its registrations and its chunks. Only the loop uses it."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from hybridps.codecs import codec_of
from hybridps.errors import HybridPSError, ProtocolError, ServerError
from hybridps.memory import private_memory
from hybridps.ps.chunk_map import Span
from hybridps.ps.clocks import BulkSynchronous
from hybridps.ps.model import Answer, ChunkPlace, Origin, Outcome, Rules, SnapshotStart, TableSpec, Task
from hybridps.ps.server.admission import Budget
from hybridps.ps.server.chunks.journal import TableJournal
from hybridps.ps.server.chunks.memory import ChunkMemory
from hybridps.ps.server.chunks.rounds import Chunk
from hybridps.ps.server.tables.images import TableImage
from hybridps.ps.server.tables.registrations import Registrations
from hybridps.shared_memory import gather

_READ_TOGETHER = 8
"""The number of chunks that are read from a snapshot at a time, because worker threads serve other tables too."""

Read = Callable[[int, int], tuple[Sequence[np.ndarray], int]]
"""Reads the centre and the states of the chunk in a place, of so many elements, and the number of its last round."""

GiveUp = Callable[[HybridPSError], list[Outcome]]


class Table:
    """One server's chunks of a table of `job`. `members`: the groups that it is for.

    Calls return what is to be done and who is to be answered, in order. A repeated request counts once. `threads` share
    the chunks. `refuses`: values with NaN or Inf do not count. `keep`: a function that returns memory that outlives the
    process, by name and size, and the number of groups that it is for; None if there is no such memory.
    """

    more_arrays = 0
    """The number of arrays of all elements besides the centre and the states of the rule."""

    def __init__(
        self,
        job: str,
        name: str,
        spec: TableSpec,
        members: Set[int],
        threads: int,
        refuses: bool,
        budget: Budget,
        keep: tuple[Callable[[str, int], np.ndarray], int] | None = None,
    ) -> None:
        self.job = job
        self.name = name
        self.spec = spec
        self.chunk_map = spec.chunk_map()
        self._owned = self.chunk_map.owned_between(spec.server, 0, spec.layout.length)
        self._threads = threads
        self._refuses = refuses
        self._budget = budget
        self.elements, self.chunks = self.chunk_map.length_of(spec.server), len(self._owned)
        """The numbers of elements and chunks of this server."""
        self.is_freed = False
        """Whether its memory must not be used any more."""
        nbytes = self.elements * spec.layout.itemsize
        self._journal: TableJournal | None = None
        if keep is None:
            self._arrays = [private_memory(nbytes).view(spec.layout.dtype) for _ in range(1 + self._states())]
        else:
            self._journal = TableJournal(keep[0], spec, keep[1], threads, budget)
            self._arrays = self._journal.arrays
        """The centre and the states of the rule, of all chunks of this server in order."""
        self._initialised = np.zeros(self.chunks, "i8") if self._journal is None else self._journal.initialised
        """For each chunk, whether its initial values are there."""
        self._chunks: dict[int, Chunk] = {}
        """The chunks that were used."""
        self._lost: dict[int, tuple[Origin, int]] = {}
        """For groups that were lost and may come back, how they had joined, and what was `computed` by then."""
        self.rounds = spec.clock.start(members)
        self.registrations = Registrations(name, spec.server == self.chunk_map.lead, self.chunks, self.rounds)

    def begin_from(self, start: SnapshotStart, read: Read, give_up: GiveUp) -> list[Outcome]:
        """Take the values of a snapshot. Worker threads `read` the chunks, a few at a time; then the table is ready.

        If a chunk cannot be read, `give_up` frees the table and returns the outcomes.
        """
        joined, left = self.registrations, self.chunks
        joined.begin_from(start)
        places = iter(range(self.chunks))

        def take(chunk: Chunk, place: int) -> None:
            chunk.memory.begin_from(*read(place, chunk.span.length))

        def begin(place: int) -> Task:
            chunk = self.chunk_in(place)
            return Task(chunk.owner, partial(take, chunk, place), partial(then, place))

        def then(place: int, result: Any) -> Sequence[Outcome]:
            nonlocal left
            if self.is_freed or joined.start != start:
                return []
            if isinstance(result, HybridPSError):
                return give_up(result)
            self._initialised[place] = 1
            left -= 1
            return [begin(following) for following in islice(places, 1)] if left else ready()

        def ready() -> list[Outcome]:
            joined.set_ready(True)
            return [*joined.release()]

        return [begin(place) for place in islice(places, _READ_TOGETHER)] if left else ready()

    def begins_anew(self, start: SnapshotStart | None) -> bool:
        """Return whether the first server starts the table from a snapshot that this server has not followed yet."""
        return start is not None and start != self.registrations.start

    def restore(self, image: TableImage) -> None:
        """Continue where the previous process was killed. Raises ServerError if the rule cannot be loaded."""
        self.registrations.restore(image)
        if self._journal is not None:
            self._journal.restore(lambda place: self.chunk_map.whole(self._owned[place]).start)
            there = np.flatnonzero(self._initialised) if image.initial is not None else ()
            self.registrations.initialised = {self._owned[place] for place in there}
            for place in self._journal.used():
                self.chunk_in(place).restore()

    def gather(self) -> None:
        """Move values in kept memory to huge pages. Called by a worker thread."""
        for array in self._arrays if self._journal is not None else ():
            gather(array)

    def owner_of(self, chunk: int) -> int:
        """Return the worker thread that owns a chunk."""
        return self.chunk_map.thread_of(chunk, self._threads)

    def chunk_in(self, place: int) -> Chunk:
        """Return the chunk in a place among those of this server."""
        return self.chunk(self._owned[place])

    def _place(self, chunk: int) -> int:
        """Return the place of a chunk among those of this server. Raises ProtocolError for others."""
        if chunk not in self._owned:
            raise ProtocolError(
                f"chunk {chunk} of table {self.name!r} is not on server {self.spec.server} of {self.spec.servers}"
            )
        return self._owned.index(chunk)

    def chunk_bytes(self, place: int) -> int:
        """Return the bytes of the centre and the states of the chunk in a place."""
        return self.chunk_map.whole(self._owned[place]).length * self.spec.layout.itemsize * len(self._arrays)

    @property
    def only_whole_chunks(self) -> bool:
        """Whether only whole chunks can be exchanged."""
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
        """Return a chunk, for a group that may use the table. Raises ProtocolError if this server does not own it."""
        chunk = self._chunks.get(index)
        if chunk is not None:
            return chunk
        place, span, owner = self._place(index), self.chunk_map.whole(index), self.owner_of(index)
        first = place * self.chunk_map.step
        centre, *state = [array[first : first + span.length] for array in self._arrays]
        of, shape, nbytes = ChunkPlace(self.job, self.name, index), self.spec.shape_of(span), self._arrays[0].nbytes
        memory = ChunkMemory(of, span.start, self.spec.rule, centre, state, self._refuses, shape, nbytes)
        options = [owner, self.registrations, self._budget, codec_of(self.spec.codec).answers]
        if self._journal is not None:
            memory.journal = self._journal.of_chunk(place, owner)
            replies = partial(self._journal.reply, slice(first, first + span.length))
            options += [replies] if self.spec.rule.separate else []
        self._chunks[index] = chunk = self._make_chunk(memory, span, *options)
        return chunk

    def initialise(self, origin: Origin, span: Span, initial: np.ndarray | None) -> Sequence[Outcome]:
        """Take in the initial values of a chunk; None is zeros."""
        joined = self.registrations
        if origin == joined.initial and span.chunk in joined.initialised:
            return self._take_initial(origin, span.chunk)
        joined.check_initialiser(origin)
        if joined.initial is None:
            self._initialised[:] = 0
        elif origin.request < joined.initial.request:
            return []  # a late copy: the group has the answer
        if joined.initial != origin:
            joined.take_initial_of(origin)
        chunk = self.chunk(span.chunk)

        def then(result: Any) -> Sequence[Outcome]:
            if isinstance(result, HybridPSError):
                return [Answer(origin, None, error=result)]  # without these values no group is let in
            if origin != joined.initial or span.chunk in joined.initialised:
                return []
            joined.initialised.add(span.chunk)
            self._initialised[self._place(span.chunk)] = 1
            return self._take_initial(origin, span.chunk)

        return [Task(chunk.owner, lambda: self._write_initial(chunk, initial), then)]

    def drop(self, group: int) -> list[Outcome]:
        """Let a group drop the table. The others continue without it.

        If all groups must do the same number of rounds, the others wait until this one has left the job: then it is
        known whether it was at its end.
        """
        if not self.rounds.equally:
            return self.leave(group, drops=True)
        self.registrations.leave(group, drops=True)
        for chunk in self._chunks.values():
            chunk.leave(group)
        return []

    def leave(
        self, group: int, drops: bool = False, returns: bool = False, lost: bool = False, ends: bool = False
    ) -> list[Outcome]:
        """Let a group go that has left the job, is lost, or `drops` the table. The others continue without it.

        If it is `lost`, its answers are remembered, in case it comes back in this life. `ends`: it has come to the end
        of its training.
        """
        void = self.rounds.members <= {group}  # before it goes: waiting groups take part as soon as it has gone
        self._lost.pop(group, None)
        counts = self.registrations.is_admitted(group) and not any(each.waits(group) for each in self._chunks.values())
        if lost and not void and counts:
            self._lost[group] = self.registrations.joined[group], self.rounds.computed
        self.registrations.leave(group, drops, returns)
        for chunk in self._chunks.values():
            chunk.leave(group, stays=group in self._lost)
        outcomes: list[Outcome] = []
        for index, verdict in self.rounds.leave(group, ends):
            outcomes += self._chunks[index].carry_out(verdict)
        for chunk in self._chunks.values() if void else ():
            chunk.forget()
        return [*outcomes, *self.registrations.release()]

    def may_come_back(self, group: int) -> bool:
        """Return whether a lost group can continue as if it had not been lost."""
        if group not in self._lost or group in self.registrations.joined:
            return False
        if not isinstance(self.spec.clock, BulkSynchronous):
            return True
        is_idle = not any(chunk.is_busy for chunk in self._chunks.values())
        return is_idle and not self.rounds.held and self.rounds.computed == self._lost[group][1]

    def come_back(self, group: int) -> None:
        """Let a group that `may_come_back` do so."""
        self.registrations.come_back(self._lost.pop(group)[0])

    def free(self) -> list[Outcome]:
        """Release the memory of the table, which is not used any more."""
        for chunk in self._chunks.values():
            chunk.forget()
        self._chunks.clear()
        self.is_freed = True
        if self._journal is not None:
            self._journal.close()
        return []

    def settle(self, group: int, request: int) -> None:
        """Note that the group has all answers to its requests before `request`."""
        if self.spec.rule.separate:
            for chunk in self._chunks.values():
                chunk.settle(group, request)

    def _states(self) -> int:
        """Return the number of arrays that are kept besides the centre."""
        return self.spec.rule.states

    def _make_chunk(self, *arguments: Any) -> Chunk:
        return Chunk(*arguments)

    def _write_initial(self, chunk: Chunk, initial: np.ndarray | None) -> None:
        """Set the initial values of a chunk, on its worker thread. Raises NotFiniteError."""
        chunk.memory.reset_(initial)

    def _take_initial(self, origin: Origin, chunk: int) -> Sequence[Outcome]:
        """Note that the initial values of one chunk are there. When all are, the table is ready."""
        self.registrations.set_ready(self.registrations.has_initial)
        return [Answer(origin, chunk), *self.registrations.release()]
