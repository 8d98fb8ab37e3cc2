"""The tables of a rack server: the rack's groups exchange here, and the rack exchanges with other racks at the parents.

With a synchronous clock, the values of a round are added up here, and all groups of the rack get the parents' answer.
`Elastic` averages with the rack's centre. The rack's centre is averaged with the parents' centre after as many
contributions as the rack has groups.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np

from hybridps.errors import HybridPSError, ServerError
from hybridps.memory import ALIGNMENT, Layout
from hybridps.ps.clocks import BulkSynchronous
from hybridps.ps.model import Answer, Origin, Outcome, ParentRequest, Rules, TableSpec, Task
from hybridps.ps.rules import Elastic
from hybridps.ps.server.chunks.round import Round
from hybridps.ps.server.chunks.rounds import Chunk
from hybridps.ps.server.tables.table import Table
from hybridps.shared_memory import shared_memory


class RackTable(Table):
    """The chunks of a table at one rack server. It is ready when the parents have answered: their centre is the rack's.

    The parents know it as one flat key: the chunks that this server owns, in order. `values` holds them on the way to
    the parents and back; `parent_centre` is for the parents' centre, if the rule answers something else. Raises
    ServerError if a rack server cannot compute this rule with this clock, or these chunks.
    """

    more_arrays = 2

    def __init__(self, job: str, name: str, spec: TableSpec, *arguments: Any) -> None:
        if not isinstance(spec.clock, BulkSynchronous) and not isinstance(spec.rule, Elastic):
            raise ServerError(
                f"the rule {spec.rule} with the clock {spec.clock} cannot be computed in racks: use the clock "
                f"{BulkSynchronous()}, or the rule Elastic; or servers without HYBRIDPS_PARENTS"
            )
        if spec.chunk_bytes % ALIGNMENT:
            raise ServerError(f"chunk_bytes={spec.chunk_bytes} cannot be used in racks: give a multiple of {ALIGNMENT}")
        super().__init__(job, name, spec, *arguments)
        server = f"{spec.server}-of-{spec.servers}"
        self.parent_job = f"{re.sub('[^A-Za-z0-9_.-]', '-', job)[:32]}.{_digest(job.encode())}.{server}"
        """The job in which servers with the same place in their racks meet at the parents."""
        # Other keys, or a different number of keys, make another name, so that the parents refuse them.
        key = f"server {server}, {len(spec.layout.slots)} keys {_digest(msgspec.msgpack.encode(spec.layout))}"
        self.parent_layout = Layout.of(spec.layout.dtype, {key: (self.elements,)})
        arrays = [shared_memory(self.parent_layout.nbytes).view(spec.layout.dtype) for _ in range(1 + self._states())]
        self.values, self.parent_centre = arrays[0], arrays[1] if self._states() else None
        self.is_at_parents = True
        """Whether the parents have the table. Only the thread of the link uses this."""
        self._asked = False
        self._answered = False

    def place(self, chunk: int, start: int, stop: int) -> slice:
        """Return where elements of a chunk lie in `values` and `parent_centre`."""
        first = (self._place(chunk) - chunk) * self.chunk_map.step
        return slice(start + first, stop + first)

    def check_rules(self, rules: Rules, start: int, stop: int) -> None:
        raise ServerError(
            f"table {self.name!r} is in a rack, whose servers cannot update with numbers that change: let the workers "
            "update (MXNET_UPDATE_ON_KVSTORE=0), or do without racks"
        )

    def check_array(self, number: int) -> None:
        if number:
            raise ServerError(f"table {self.name!r} is in a rack: the parents keep the states of its rule")

    @property
    def only_whole_chunks(self) -> bool:
        return not isinstance(self.spec.clock, BulkSynchronous) or self.parent_centre is not None

    def free(self) -> list[Outcome]:
        super().free()
        return [ParentRequest("drop", self, lambda error: ())] if self._asked else []

    def _states(self) -> int:
        """Return the number of kept answers: 1 if the answer is neither the centre nor computed by the rack itself."""
        return int(not self.spec.rule.answer_is_new_value and not self.spec.rule.separate)

    def _make_chunk(self, *arguments: Any) -> Chunk:
        return (RackSum if isinstance(self.spec.clock, BulkSynchronous) else RackAverage)(self, *arguments)

    def _write_initial(self, chunk: Chunk, initial: np.ndarray | None) -> None:
        if not self._asked:
            super()._write_initial(chunk, initial)
            self.values[self.place(*chunk.span)] = chunk.memory.centre

    def _take_initial(self, origin: Origin, chunk: int) -> Sequence[Outcome]:
        """Send the values to the parents when all initial values are there."""
        if self.registrations.ready:
            return [Answer(origin, chunk)]
        if not self.registrations.has_initial:
            return []
        if self._answered:
            return self._end_start()
        request = [] if self._asked else [ParentRequest("register", self, self._registered)]
        self._asked = True
        return request

    def _registered(self, error: HybridPSError | None) -> Iterable[Outcome]:
        """Take the parents' centre as the rack's, after the parents have registered the table."""
        self._answered = True
        outcomes: list[Outcome] = []
        for index in self._owned:
            chunk = self.chunk(index)
            values = self.values[self.place(*chunk.span)]
            outcomes.append(Task(chunk.owner, partial(chunk.memory.reset_, values), lambda result: ()))
        return [*outcomes, *self._end_start()]

    def _end_start(self) -> list[Outcome]:
        """Let the groups in: the initial values are there, and the parents have answered."""
        joined = self.registrations
        joined.ready = True
        done = [Answer(joined.initial, index) for index in self._owned] if joined.initial else []
        return [*done, *joined.release()]


class RackSum(Chunk):
    """A chunk whose rounds are added up here and computed by the parents, one at a time for each element."""

    def __init__(self, table: RackTable, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._table = table
        self._away: list[Round] = []
        """Rounds that are on their way to the parents and back, of different elements."""
        self._waiting: list[Round] = []
        """Rounds that wait because some of their elements are away."""

    def leave(self, group: int, stays: bool = False) -> None:
        super().leave(group)
        for complete in (*self._away, *self._waiting):
            complete.outlets.pop(group, None)

    def _compute(self, complete: Round) -> list[Outcome]:
        """Add up what counts, and send it to the parents."""
        others = (*self._away, *self._waiting)
        if any(complete.start < other.stop and other.start < complete.stop for other in others):
            self._waiting.append(complete)
            return []
        self._away.append(complete)
        place = self._table.place(self.span.chunk, complete.start, complete.stop)

        def then(result: Any) -> Iterable[Outcome]:
            if isinstance(result, HybridPSError):
                return self._end(complete, {}, result)
            groups, refused = result
            for group in refused:
                complete.outlets.pop(group, None)
            answered = partial(self._answered, complete, place, refused)
            return [ParentRequest("exchange", self._table, answered, place, groups)]

        run = partial(self.memory.sum_, complete, self._table.values[place])
        return [Task(self.owner, run, then, round_of=self.memory.place)]

    def _answered(self, complete: Round, place: slice, refused: Any, error: HybridPSError | None) -> Iterable[Outcome]:
        """Take the parents' answer as the rack's."""
        if error is not None:
            return self._end(complete, refused, error)
        centre = None if self._table.parent_centre is None else self._table.parent_centre[place]
        targets = [array for arrays in complete.outlets.values() for array in arrays]
        run = partial(self.memory.take_, complete.start, complete.stop, self._table.values[place], centre, targets)
        return [Task(self.owner, run, partial(self._end, complete, refused))]

    def _end(self, complete: Round, refused: Any, result: Any) -> Iterable[Outcome]:
        """End a round with `result`, which may be an error, and begin the rounds that waited for its elements."""
        self._away.remove(complete)
        waiting, self._waiting = self._waiting, []
        answers = complete.finish(result if isinstance(result, HybridPSError) else refused)
        return [*answers, *(outcome for each in waiting for outcome in self._compute(each))]


class RackAverage(Chunk):
    """A chunk whose centre is averaged with the parents' after as many contributions as there are members."""

    def __init__(self, table: RackTable, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._table = table
        self._came = 0
        self._is_away = False

    def _compute(self, complete: Round) -> list[Outcome]:
        self._came += len(complete.contributions)
        return [*super()._compute(complete), *self._go_up()]

    def _go_up(self) -> list[Outcome]:
        if self._is_away or self._came < max(1, len(self.rounds.members)):
            return []
        self._came, self._is_away = 0, True
        place = self._table.place(*self.span)
        values = self._table.values[place]

        def answered(error: HybridPSError | None) -> Iterable[Outcome]:
            """Move the rack's centre by d, as the parents' centre has moved."""
            self._is_away = False
            moves = Task(self.owner, lambda: np.subtract(centre, values, out=centre), lambda result: ())
            return [*([] if error else [moves]), *self._go_up()]

        centre, request = self.memory.centre, ParentRequest("exchange", self._table, answered, place)
        return [Task(self.owner, lambda: np.copyto(values, centre), lambda result: [request])]


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:12]
