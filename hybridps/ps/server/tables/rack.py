"""The role of a rack server: its groups meet here, and the rack meets the other racks at the parents.

With a synchronous clock the values of a round are added up here, and the parents' answer is given to all groups of the
rack. `Elastic` averages with the rack's centre, which is averaged with the parents' whenever as many values came as the
rack has groups.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from functools import partial
from typing import Any

import msgspec
import numpy as np

from hybridps.errors import HybridPSError, ServerError
from hybridps.memory import ALIGNMENT, Layout, shared_memory
from hybridps.ps.chunk_map import Span
from hybridps.ps.clocks import BulkSynchronous
from hybridps.ps.model import Answer, Origin, Outcome, TableSpec, Task, Upward
from hybridps.ps.rules import Elastic
from hybridps.ps.server.tables.roles import Role, Round
from hybridps.ps.server.tables.rounds import Chunk
from hybridps.ps.server.tables.table import Table

MORE_ARRAYS = 2
"""Of a rack server's table: the values on their way to the parents and back, and the parents' centre."""


class ParentTable:
    """A table of a rack server as its parents know it: one flat key, the chunks that this server owns, in order.

    `values` is where they lie on the way to the parents and back, a chunk `step` elements after the one before;
    `centre` is for the centre of the parents, where the rule answers something else.
    """

    def __init__(self, job: str, table: str, spec: TableSpec, length: int) -> None:
        self.table = table
        self.rule, self.clock, self.chunk_bytes, self.codec = spec.rule, spec.clock, spec.chunk_bytes, spec.codec
        whole, server = spec.layout, f"{spec.server}-of-{spec.servers}"
        self.job = f"{re.sub('[^A-Za-z0-9_.-]', '-', job)[:32]}.{_digest(job.encode())}.{server}"
        """Servers with the same place in their racks meet there."""
        # Other keys, or others in number, make another name: the parents refuse them.
        key = f"server {server}, {len(whole.slots)} keys {_digest(msgspec.msgpack.encode(whole))}"
        self.layout = Layout.of(whole.dtype, {key: (length,)})
        self.values = shared_memory(self.layout.nbytes).view(whole.dtype)
        replaces = spec.rule.answer_is_new_value or spec.rule.separate
        self.centre = None if replaces else shared_memory(self.layout.nbytes).view(whole.dtype)
        self._spec = spec

    def place(self, span: Span) -> slice:
        """Where a span lies in `values` and `centre`."""
        step = self._spec.chunk_bytes // self._spec.layout.itemsize
        first = (span.chunk - self._spec.server) // self._spec.servers * step - span.chunk * step
        return slice(span.start + first, span.stop + first)


class RackTable(Table):
    """The chunks of one rack server. It is ready when the parents have answered: their centre is the rack's."""

    def __init__(self, job: str, name: str, spec: TableSpec, *arguments: Any, **options: Any) -> None:
        check_rack(spec)
        super().__init__(name, spec, *arguments, **options)
        self._job = job
        self._above = ParentTable(job, name, spec, self.elements)
        self._asked = False

    @property
    def only_whole_chunks(self) -> bool:
        return not isinstance(self.spec.clock, BulkSynchronous) or self._above.centre is not None

    def leave(self, group: int) -> list[Outcome]:
        initial = self.registrations.initial
        if initial is not None and initial.group == group:
            self.registrations.initial = None
        return super().leave(group)

    def freed(self) -> list[Outcome]:
        return [Upward(self._job, "drop", self._above, lambda error: ())] if self._asked else []

    @property
    def _waits_for_parents(self) -> bool:
        return True

    def _states(self) -> int:
        return 0 if self._above.centre is None else 1

    def _make_role(self, chunk: int) -> Role:
        if isinstance(self.spec.clock, BulkSynchronous):
            return RackSum(self._job, self._above)
        return RackAverage(self._job, self._above)

    def _write_initial(self, chunk: Chunk, initial: np.ndarray | None) -> None:
        if not self._asked:
            super()._write_initial(chunk, initial)
            self._above.values[self._above.place(chunk.span)] = chunk.memory.centre

    def _take_initial(self, origin: Origin, chunk: int) -> list[Outcome]:
        """When all values are there they go to the parents."""
        if not self.registrations.has_initial:
            return []
        if self._asked:
            return self._end_start()
        self._asked = True
        return [Upward(self._job, "register", self._above, self._registered)]

    def _registered(self, error: HybridPSError | None) -> Iterable[Outcome]:
        """The parents know the table: their centre is the rack's."""
        self._asked = True
        outcomes: list[Outcome] = []
        for index in self._owned:
            chunk = self._chunk(index)
            values = self._above.values[self._above.place(chunk.span)]
            outcomes.append(Task(chunk.owner, partial(chunk.memory.reset_, values), lambda result: ()))
        return [*outcomes, *self._end_start()]

    def _end_start(self) -> list[Outcome]:
        """Let the groups in: the initial values came, and the parents have answered."""
        self.registrations.ready = True
        initial = self.registrations.initial
        done = [Answer(initial, index) for index in self._owned] if initial else []
        return [*done, *self.registrations.release()]


class RackSum:
    """A chunk whose rounds are added up here and computed by the parents: of an element one after the other."""

    def __init__(self, job: str, above: ParentTable) -> None:
        self._job = job
        self._above = above
        self._away: list[Round] = []
        """Rounds that are on their way to the parents and back, of different elements."""
        self._waiting: list[Round] = []
        """Rounds of elements that are away."""

    def complete(self, complete: Round) -> Iterable[Outcome]:
        if any(_overlap(complete, other) for other in (*self._away, *self._waiting)):
            self._waiting.append(complete)
            return []
        self._away.append(complete)
        return [self._gather(complete)]

    def leave(self, group: int) -> None:
        for complete in (*self._away, *self._waiting):
            complete.outlets.pop(group, None)

    def _gather(self, complete: Round) -> Task:
        """Add up what counts, and send it up."""
        place = self._above.place(Span(complete.chunk.span.chunk, complete.start, complete.stop))
        out = self._above.values[place]

        def then(result: Any) -> Iterable[Outcome]:
            if isinstance(result, HybridPSError):
                return self._end(complete, result)
            groups, refused = result
            answered = partial(self._answered, complete, place, refused)
            return [Upward(self._job, "exchange", self._above, answered, place, groups)]

        memory, work = complete.chunk.memory, (complete.start, complete.stop, complete.contributions, out)
        return Task(complete.chunk.owner, lambda: memory.sum_(*work), then)

    def _answered(self, complete: Round, place: slice, refused: Any, error: HybridPSError | None) -> Iterable[Outcome]:
        """The parents' answer is the rack's."""
        if error is not None:
            return self._end(complete, error)
        memory, centre = complete.chunk.memory, self._above.centre
        work = complete.start, complete.stop, self._above.values[place], None if centre is None else centre[place]

        def then(result: Any) -> Iterable[Outcome]:
            return self._end(complete, result if isinstance(result, HybridPSError) else refused)

        outlets = {group: arrays for group, arrays in complete.outlets.items() if group not in refused}
        return [Task(complete.chunk.owner, lambda: memory.take_(*work, outlets), then)]

    def _end(self, complete: Round, result: Any) -> Iterable[Outcome]:
        self._away.remove(complete)
        waiting, self._waiting = self._waiting, []
        return [*complete.finish(result), *(outcome for each in waiting for outcome in self.complete(each))]


class RackAverage:
    """A chunk whose centre is averaged with that of the parents, whenever as many values came as there are members."""

    def __init__(self, job: str, above: ParentTable) -> None:
        self._job = job
        self._above = above
        self._came = 0
        self._is_away = False

    def complete(self, complete: Round) -> Iterable[Outcome]:
        chunk = complete.chunk
        work = complete.start, complete.stop, complete.contributions, complete.outlets
        self._came += len(complete.contributions)
        return [Task(chunk.owner, lambda: chunk.memory.apply_(*work), complete.finish), *self._go_up(chunk)]

    def leave(self, group: int) -> None:
        """Nothing of a group waits for the parents."""

    def _go_up(self, chunk: Chunk) -> list[Outcome]:
        if self._is_away or self._came < max(1, chunk.members):
            return []
        self._came, self._is_away = 0, True
        place = self._above.place(chunk.span)
        above = Upward(self._job, "exchange", self._above, partial(self._answered, chunk, place), place)
        return [Task(chunk.owner, lambda: np.copyto(self._above.values[place], chunk.memory.centre), lambda _: [above])]

    def _answered(self, chunk: Chunk, place: slice, error: HybridPSError | None) -> Iterable[Outcome]:
        """The rack's centre moves by d, as the parents' has."""
        self._is_away = False
        centre, difference = chunk.memory.centre, self._above.values[place]
        moves = Task(chunk.owner, lambda: np.subtract(centre, difference, out=centre), lambda result: ())
        return [*([] if error else [moves]), *self._go_up(chunk)]


def check_rack(spec: TableSpec) -> None:
    """Raise ServerError if a rack server cannot compute this rule with this clock, or these chunks."""
    if not isinstance(spec.clock, BulkSynchronous) and not isinstance(spec.rule, Elastic):
        raise ServerError(
            f"the rule {spec.rule} with the clock {spec.clock} cannot be computed in racks: use the clock "
            f"{BulkSynchronous()}, or the rule Elastic; or servers without HYBRIDPS_PARENTS"
        )
    if spec.chunk_bytes % ALIGNMENT:
        raise ServerError(f"chunk_bytes={spec.chunk_bytes} cannot be used in racks: give a multiple of {ALIGNMENT}")


def _overlap(one: Round, other: Round) -> bool:
    return one.start < other.stop and other.start < one.stop


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:12]
