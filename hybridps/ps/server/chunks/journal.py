"""The journal of a table: its values, the marks, and the progress of each worker thread, which outlive the server.

A server may be killed at any instruction. The next one undoes the block that was being changed, and continues the round
there when its contributions arrive again. The loop makes and restores journals; a chunk's worker thread writes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter

import numpy as np

from hybridps.ps.model import Contribution, TableSpec
from hybridps.ps.rules.kernel import COMPILED, KEPT_BLOCK
from hybridps.ps.rules.progress import LENGTH, WORD, Progress
from hybridps.ps.rules.rule import Rule
from hybridps.ps.server.admission import Budget
from hybridps.ps.server.chunks.area import (
    COUNT,
    FAILED,
    GROUPS,
    PLACE,
    REFUSED,
    ROW_FIELD,
    STEP_FIELD,
    STOP_FIELD,
    SUMMED,
    WORDS,
    Area,
    Mark,
    write_marks,
)
from hybridps.ps.server.chunks.round import Round

log = logging.getLogger("hybridps.ps")

RANGES = 512
"""The ranges of a chunk whose last rounds are remembered: more than the parts that a group may have under way."""

CUTS = 64
"""The largest number of cut rounds of a table that wait to be continued: one for each worker thread and death."""


class TableJournal:
    """The journal of one server's part of a table, for `groups` groups and `workers` worker threads.

    `make` returns memory (uint8) by name and size, with its content from the last process, or else zeros. `budget` is
    charged for replies.
    """

    def __init__(
        self,
        make: Callable[[str, int], np.ndarray],
        spec: TableSpec,
        groups: int,
        workers: int,
        budget: Budget,
    ) -> None:
        def array(name: str, kind: np.dtype | str, *shape: int) -> np.ndarray:
            nbytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(kind).itemsize
            return make(name, nbytes).view(kind).reshape(shape)

        self._make_array = array
        rule, dtype, chunk_map = spec.rule, np.dtype(spec.layout.dtype), spec.chunk_map()
        elements, step = chunk_map.length_of(spec.server), chunk_map.step
        chunks = -(-elements // step)
        self.arrays = [array(f"array {number}", dtype, elements) for number in range(1 + rule.states)]
        """The centre and the states of the rule."""
        self.initialised = array("initialised", "i8", chunks)
        """For each chunk, whether its initial values are there."""
        self._puts = array("puts", "i8", chunks, groups, 2)
        """For each chunk and group, the epoch, and 1 + the last request that replaced one of the chunk's arrays."""
        self._marks = array("marks", "i8", RANGES, chunks, groups, len(Mark._fields))
        self._used = array("used", "i8", chunks)
        """For each chunk, how many of its ranges are used."""
        self._began_after = array("began after", "i8", chunks)
        """For each chunk, the number of its last round for the rule in the snapshot that it is from, or 0."""
        blocks = dtype in COMPILED and type(rule).load is Rule.load
        rows = 1 if rule.centre_is_answer else 2 + rule.states
        areas = workers + CUTS
        words = array("words", "i8", areas, WORDS)
        entries = array("entries", "i8", areas, groups, 1 + len(Mark._fields))
        saved = array("saved", dtype, areas, rows, min(KEPT_BLOCK, step) if blocks else step)
        self._areas = [Area(words[i], entries[i], saved[i], rule.separate) for i in range(areas)]
        self._workers = workers
        self._budget = budget
        self._replies: dict[int, np.ndarray] = {}
        """The memory of the replies to each group."""
        self._step = step
        self._elements, self._dtype = elements, dtype

    def reply(self, part: slice, group: int) -> np.ndarray:
        """Return where answers to a group are written, for `part` of this server's elements, if they are kept."""
        if group not in self._replies:
            self._replies[group] = self._make_array(f"reply {group}", self._dtype, self._elements)
            self._budget.take(self._replies[group].nbytes)
        return self._replies[group][part]

    def close(self) -> None:
        """Give back the memory of replies. The table is not used any more."""
        self._budget.take(-sum(reply.nbytes for reply in self._replies.values()))
        self._replies.clear()

    def used(self) -> list[int]:
        """Return the places of chunks that have had a round or a put, or have initial values."""
        busy = (self._used > 0) | (self.initialised > 0) | self._puts[..., 1].any(axis=1)
        return [int(place) for place in np.flatnonzero(busy)]

    def restore(self, first_of: Callable[[int], int]) -> None:
        """Undo the blocks that were being changed. `first_of`: returns the first element of the chunk in a place.

        Call this before anything is computed.
        """
        for area in self._areas[: self._workers]:
            if not area.words[WORD]:
                continue
            place, (_, stop) = int(area.words[PLACE]), area.range
            if area.next == stop:
                write_marks(area, self._marks[:, place])
                area.words[WORD] = 0
                continue
            if area.is_changed:
                begin = place * self._step + area.next - first_of(place)
                length = int(area.words[LENGTH])
                for array, row in zip(self.arrays, area.saved[1:], strict=False):
                    np.copyto(array[begin : begin + length], row[:length])
            if not area.words[COUNT]:  # no round: a rule was being loaded
                area.words[WORD] = 0
                continue
            free = self._free(area)
            if free is None:
                log.error("a round of elements %d:%d is lost: %d others wait", *area.range, CUTS)
                area.words[WORD] = 0
            else:
                area.move_to(free)

    def of_chunk(self, place: int, worker: int) -> ChunkJournal:
        """Return the journal of the chunk in a place, which that worker thread computes."""
        cuts = [area for area in self._areas[self._workers :] if area.words[WORD] and area.words[PLACE] == place]
        used, puts = self._used[place : place + 1], self._puts[place]
        began_after = self._began_after[place : place + 1]
        return ChunkJournal(place, self._marks[:, place], used, puts, self._areas[worker], cuts, began_after)

    def _free(self, area: Area) -> Area | None:
        """Return where a cut round can wait: where it waits already, or in any free area."""
        cuts = self._areas[self._workers :]
        same = [cut for cut in cuts if cut.words[WORD] and cut.range == area.range and cut.ids == area.ids]
        return next(iter([*same, *(cut for cut in cuts if not cut.words[WORD])]), None)


class ChunkJournal:
    """The journal of one chunk, in a `place` of its table. `marks`: by range and group, for `used[0]` ranges so far.
    `cuts`: rounds to be continued. `puts`: the epoch of each group, and 1 + its last request that replaced an array.
    `began_after[0]`: the number of the last round for the rule in the snapshot that it is from.
    """

    def __init__(
        self,
        place: int,
        marks: np.ndarray,
        used: np.ndarray,
        puts: np.ndarray,
        area: Area,
        cuts: list[Area],
        began_after: np.ndarray,
    ) -> None:
        self._place = place
        self._marks = marks
        self._used = used
        self._puts = puts
        self._area = area
        self._cuts = cuts
        self._began_after = began_after
        latest = [max(row.tolist(), key=itemgetter(STEP_FIELD)) for row in marks[: used[0]]]
        ranges = sorted((mark[STEP_FIELD], index) for index, mark in enumerate(latest))
        self._ranges = {Mark(*latest[index])[2:4]: index for _, index in ranges}
        """The index of each range, beginning with the range of the oldest round."""

    @property
    def is_cut(self) -> bool:
        """Whether an earlier process has begun a round that is not complete."""
        return bool(self._cuts)

    def begin_after(self, step: int) -> None:
        """Note that the chunk is from a snapshot, after its round number `step` for the rule."""
        self._began_after[0] = step

    def counted(self) -> dict[int, list[Mark]]:
        """Return the contributions of each group that count."""
        found: dict[int, list[Mark]] = {}
        for row in self._marks[: self._used[0]]:
            for group in np.flatnonzero(row[:, STOP_FIELD]):
                found.setdefault(int(group), []).append(Mark(*row[group].tolist()))
        return found

    def cut(self, complete: Round) -> Area | None:
        """Return what an earlier process has recorded of this round, if it has begun it."""
        if not self._cuts:
            return None
        ids, elements = {each.origin[1:] for each in complete.counted}, (complete.start, complete.stop)
        return next((cut for cut in self._cuts if cut.range == elements and not ids.isdisjoint(cut.ids)), None)

    def put(self, group: int, epoch: int, request: int) -> None:
        """Note that a request of a group has replaced an array."""
        self._puts[group, 1] = 0
        self._puts[group, 0] = epoch
        self._puts[group, 1] = request + 1

    def puts_of(self) -> list[tuple[tuple[int, int], int]]:
        """Return the groups and epochs that have replaced an array, each with the last request that did."""
        return [((group, int(epoch)), int(last) - 1) for group, (epoch, last) in enumerate(self._puts) if last]

    def begin(self, complete: Round, step: int, groups: int) -> None:
        """Begin a round, with this number for the rule, and the values of `groups` groups."""
        area, start, stop, marks = self._area, complete.start, complete.stop, []
        for each, number in zip(complete.counted, complete.values, strict=True):
            marks.append((*each.origin[1:], start, stop, step, -1, 0, number))
        area.words[WORD] = 0
        index = self._ranges.pop((start, stop), None)
        if index is None:
            index = int(self._used[0])
            if index < RANGES:
                self._used[0] = index + 1
            else:
                index = self._ranges.pop(next(iter(self._ranges)))
        self._ranges[start, stop] = index
        area.entries[: len(marks)] = marks
        area.words[PLACE : SUMMED + 1] = self._place, index, start, stop, step, groups, len(marks), 0
        area.words[WORD] = 2 * (start + 1)

    def go_on(self, cut: Area) -> None:
        """Continue a round that an earlier process has begun."""
        cut.move_to(self._area)
        self._cuts = [each for each in self._cuts if each is not cut]  # their arrays cannot be compared

    @property
    def length(self) -> int:
        """The number of elements of the block whose sum is kept."""
        return int(self._area.words[LENGTH])

    @property
    def groups(self) -> int:
        """How many groups' values the next block of the round has."""
        return self._area.groups

    @groups.setter
    def groups(self, groups: int) -> None:
        self._area.words[GROUPS] = groups

    @property
    def step(self) -> int:
        """The number of the round for the rule."""
        return self._area.step

    def progress(self, start: int) -> Progress:
        """Return where to record the progress of the round, from element `start` on."""
        area, is_summed = self._area, bool(self._area.words[SUMMED] == start + 1)
        return Progress(area.words, area.saved, start, area.saves_sum, is_summed)

    def last_step(self) -> tuple[int, set[tuple[int, int]]]:
        """Return the number of the last round for the rule, and its elements; none if a snapshot has that round."""
        marks = [mark for marks in self.counted().values() for mark in marks]
        steps = [(mark.step, mark.start, mark.stop) for mark in marks]
        steps += [(cut.step, *cut.range) for cut in self._cuts]
        last = max((step for step, *_ in steps), default=int(self._began_after[0]))
        return last, {(start, stop) for step, start, stop in steps if step == last}

    def mark_not_finite(self, contributions: Iterable[Contribution]) -> None:
        """Note whose values have NaN or Inf."""
        found = {each.origin.group: each.not_finite[0] for each in contributions if each.not_finite}
        for entry in self._area.entries[: self._area.words[COUNT]]:
            if int(entry[0]) in found:
                entry[1 + ROW_FIELD : 3 + ROW_FIELD] = found[int(entry[0])]

    def refuse(self, groups: Iterable[int]) -> None:
        """Note that the contributions of these groups do not count, from the next block on."""
        for entry in self._area.entries[: self._area.words[COUNT]]:
            if int(entry[0]) in groups:
                entry[1 + ROW_FIELD] = REFUSED

    def fail(self) -> None:
        """End the round under way, if there is one, with an error, which all of its groups are told."""
        if self._area.words[WORD]:
            self._area.entries[: self._area.words[COUNT], 1 + ROW_FIELD] = FAILED
            self.end()

    def save(self, arrays: Sequence[np.ndarray], start: int) -> None:
        """Save values that the next process puts back into the chunk's arrays, which begin at `start`, until `end`."""
        self._area.words[PLACE : SUMMED + 1] = self._place, 0, start, start + len(arrays[0]), 0, 0, 0, 0
        self.progress(start).begin((arrays[0], *arrays), len(arrays[0]))

    def notes(self) -> dict[int, tuple[int, int]]:
        """Return, for groups in the round that were refused or have NaN or Inf, the row and element, as in `Mark`."""
        fields = self._area.entries[: self._area.words[COUNT], [0, 1 + ROW_FIELD, 2 + ROW_FIELD]].tolist()
        return {group: (row, element) for group, row, element in fields if row != -1}

    def end(self) -> None:
        """End the round. Its contributions count, except for those that were refused."""
        write_marks(self._area, self._marks)
        self._area.words[WORD] = 0

    def forget(self, group: int | None = None) -> None:
        """Do not continue cut rounds of an earlier process: those with only this group's contributions, or all."""
        for cut in self._cuts:
            if group is None or {each[0] for each in cut.ids} == {group}:
                cut.words[WORD] = 0
        self._cuts = [cut for cut in self._cuts if cut.words[WORD]]
