"""The memory of a chunk. Only the worker thread that owns the chunk uses it, so nothing is locked."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from hybridps.codecs import Values
from hybridps.compiled.finite import is_finite
from hybridps.ps.model import ChunkPlace, Contribution
from hybridps.ps.rules import AnyRule, Rule, add_up_, apply_
from hybridps.ps.rules.finite import NotFiniteError, check_finite, not_finite, refused_error
from hybridps.ps.rules.kernel import block_size
from hybridps.ps.rules.progress import Progress
from hybridps.ps.server.chunks.area import REFUSED
from hybridps.ps.server.chunks.journal import ChunkJournal
from hybridps.ps.server.chunks.no_journal import NoJournal
from hybridps.ps.server.chunks.round import Refused, Round, cut, mark_not_finite, not_finite_of, rows_of


class ChunkMemory:
    """The centre of a chunk and the states of its rule: flat arrays of equal length and dtype.

    `start`: the chunk's first element in the flat buffer, by which elements are numbered. `refuses`: whether values
    with NaN or Inf do not count; otherwise they count, and their contribution notes it. `shape`: without padding.
    `whole_bytes`: the size of all chunks here. The values of a round are added in the order of their groups, whenever
    they arrive, so that the same values give the same bits.
    """

    def __init__(
        self,
        place: ChunkPlace,
        start: int,
        rule: AnyRule,
        centre: np.ndarray,
        state: list[np.ndarray],
        refuses: bool,
        shape: tuple[int, ...],
        whole_bytes: int = 0,
    ) -> None:
        self.place = place
        self.name = f"chunk {place.chunk} of table {place.table!r}"
        self.rule = rule
        self.centre = centre
        self._start = start
        self._state = state
        self._refuses = refuses
        self._shape = shape
        self._whole_bytes = whole_bytes
        self.journal: ChunkJournal | NoJournal = NoJournal()
        """Records what outlives the process."""
        self.steps = 0
        """The number of the last round for the rule; 0 before the first one."""
        self._computed: list[tuple[int, int]] = []
        """The elements whose last round is number `steps`, as spans."""
        self._loaded: Callable[[Any, int, np.ndarray], None] | None = None
        """Updates the chunk, if the compiled rule does not."""

    def reset_(self, initial: np.ndarray | None) -> None:
        """Set the centre to initial values, or to zeros, and the states to zeros.

        Raises NotFiniteError, and changes nothing; raises ServerError if the rule cannot be loaded.
        """
        if initial is not None and self._refuses:
            check_finite(initial, self.name)
        self.steps, self._computed = 0, []
        self.centre[:] = 0 if initial is None else initial
        for array in self._state:
            array[:] = 0
        self._load()

    def restore(self) -> None:
        """Continue from what the previous process has left. Raises ServerError if the rule cannot be loaded."""
        if type(self.rule).load is not Rule.load:  # what it loads begins with its own states
            before = [array.copy() for array in self.arrays]
            self.journal.save(before, self._start)
            self._load()
            for array, values in zip(self.arrays, before, strict=True):
                np.copyto(array, values)
            self.journal.end()
        self.steps, ranges = self.journal.last_step()
        self._computed = [*ranges] or [self._whole]

    def begin_from(self, arrays: Sequence[np.ndarray], step: int) -> None:
        """Take the centre and the states from a snapshot, after round number `step`. Raises the errors of `reset_`."""
        self.reset_(arrays[0])
        for array, values in zip(self.arrays, arrays, strict=True):  # a loaded rule begins with its own states
            np.copyto(array, values)
        self.steps, self._computed = step, [self._whole]
        self.journal.begin_after(step)

    @property
    def is_cut(self) -> bool:
        """Whether it has a part of a round that an earlier process has begun."""
        return self.journal.is_cut

    @property
    def _whole(self) -> tuple[int, int]:
        return self._start, self._start + len(self.centre)

    def _load(self) -> None:
        size = math.prod(self._shape)
        self._loaded = self.rule.load(self._shaped(self.centre), [array[:size] for array in self._state])

    @property
    def arrays(self) -> Sequence[np.ndarray]:
        """The centre, and the states of the rule."""
        return self.centre, *self._state

    def put_(self, array: int, values: np.ndarray) -> None:
        """Replace one of the arrays. Raises NotFiniteError, and changes nothing."""
        if self._refuses:
            check_finite(values, self.name)
        np.copyto(self.arrays[array], values)

    def add_(self, complete: Round) -> Refused:
        """Add contributions of the whole chunk to the early sum. Returns the groups that are refused."""
        early = complete.early
        total = early.rows[0] if early.rows else np.empty_like(self.centre)
        early.groups, refused = self.sum_(complete, total)
        early.refused |= refused
        early.rows = [total] if early.rows or len(refused) < len(complete.contributions) else ()
        return refused

    def sum_(self, complete: Round, out: np.ndarray) -> tuple[int, Refused]:
        """Set `out` to the sum of a round. Returns how many groups it has, and the groups that are refused."""
        start, stop, early = complete.start, complete.stop, complete.early
        refused = self._refused(complete.contributions, start, stop) if self._refuses else {}
        taken = [each for each in complete.contributions if each.origin.group not in refused]
        rows: list[Values] = [cut(row, self._start, start, stop) for row in early.rows]
        rows += [row for each in taken for row in rows_of(each, start, stop)]
        if rows:
            add_up_(out, rows)
        else:
            out[:] = 0
        if not self._refuses and not is_finite(out):
            mark_not_finite(complete.contributions, start, stop)
        return early.groups + sum(each.groups for each in taken), refused

    def apply_(self, complete: Round) -> Refused:
        """Update the elements of a round, and write the answer to the outlets. Returns the groups that are refused.

        The rule runs on the values of all groups up to the block in which one of them is not finite, and continues from
        there without that group. If such values are not refused, it is noted whose they are, because the answer may
        replace them.
        """
        try:
            return self._apply_blocks_(complete) if self._loaded is None else self._apply_loaded_(complete)
        except Exception:
            self.journal.fail()
            raise

    def _apply_blocks_(self, complete: Round) -> Refused:
        """Do this block by block, with the compiled rule."""
        start, stop, early = complete.start, complete.stop, complete.early
        left = {each.origin.group: each for each in complete.contributions}
        refused: Refused = {}
        begin, goes_on = self._begin_(complete)
        end, check = stop, not self._known(complete, left, refused, goes_on)
        rules = [*complete.rules] or [(stop, self.rule)]
        while begin < stop:
            while rules[0][0] <= begin:
                del rules[0]
            limit, rule = rules[0]
            groups = early.groups + sum(each.groups for each in left.values())
            progress, end, groups = self._progress(begin, min(end, limit), groups)
            outlets = {group: arrays for group, arrays in complete.outlets.items() if group not in refused}
            targets = [cut(array, start, begin, end) for arrays in outlets.values() for array in arrays]
            if not (early.rows or left) or not (groups or self.rule.separate):  # no values, or values of no group
                if not self.rule.separate:  # otherwise there is nobody left to answer
                    self.give_(begin, end, targets)
                begin, end = end, stop
                continue
            rows: list[Values] = [cut(row, self._start, begin, end) for row in early.rows]
            rows += [row for each in left.values() for row in rows_of(each, begin, end)]
            centre, *state = [cut(array, self._start, begin, end) for array in (self.centre, *self._state)]
            options: dict[str, Any] = {"step": self.journal.step, "contributions": groups, "check_finite": check}
            options |= {"whole_bytes": self._whole_bytes, "progress": progress}
            begin += apply_(rule, rows, targets, centre, state, **options)
            is_done, end, check = begin >= end, stop, check or self._refuses
            if not is_done and not self._refuses:
                mark_not_finite(left.values(), begin, stop)
                self.journal.mark_not_finite(complete.counted)
                check = False
            elif not is_done:
                block_end = min(begin + block_size(progress), stop)
                bad = self._refused(left.values(), begin, block_end)
                refused |= bad
                for group in bad:
                    del left[group]
                self.journal.refuse(bad)
                if not bad:  # all are finite, but their sum is not
                    end, check = block_end, False
        self.journal.end()
        return refused

    def _apply_loaded_(self, complete: Round) -> Refused:
        """Do this for the whole chunk, with what the rule has loaded."""
        total, refused = np.empty_like(self.centre), Refused()
        begin, goes_on = self._begin_(complete)
        self._known(complete, {}, refused, goes_on)
        progress = self.journal.progress(begin)
        groups, refused = self.sum_(complete, total)
        self.journal.refuse(refused)
        rules = [rule for _, rule in complete.rules] or [self.rule]
        if progress is not None:
            progress.begin((total, *self.arrays), len(total))
        if groups and self._loaded is not None:
            self._loaded(rules[0], self.journal.step, self._shaped(total))
        if progress is not None:
            progress.end(len(total))
        for group, targets in complete.outlets.items():
            for target in targets if group not in refused else ():
                np.copyto(target, self.centre)
        self.journal.end()
        return refused

    def _begin_(self, complete: Round) -> tuple[int, bool]:
        """Begin or continue a round. Returns its first element that an earlier process has not done, and whether an
        earlier process has begun it.
        """
        start, stop, early = complete.start, complete.stop, complete.early
        known = self.journal.cut(complete)
        if known is not None:
            begin = known.next
            self.journal.go_on(known)
            for targets in complete.outlets.values() if not self.rule.separate else ():  # otherwise they were written
                self.give_(start, begin, [cut(target, start, start, begin) for target in targets])
            return begin, True
        groups = early.groups + sum(each.groups for each in complete.contributions)
        if (early.rows or complete.contributions) and (groups or self.rule.separate):
            self._advance(start, stop)
        self.journal.begin(complete, self.steps, groups)
        return start, False

    def _known(self, complete: Round, left: dict[int, Contribution], refused: Refused, goes_on: bool) -> bool:
        """Take over what an earlier process has found in a round that is continued: the groups that were refused, and
        those whose values have NaN or Inf and count. Returns whether there are any of the latter.
        """
        early = complete.early.refused
        if early:
            self.journal.refuse(early)
        noted = self.journal.notes() if early or goes_on else {}
        for each in complete.counted if noted else ():
            group, note = each.origin.group, noted.get(each.origin.group)
            if note is not None and note[0] == REFUSED:
                left.pop(group, None)
                refused[group] = early.get(group) or refused_error(self.name)
            elif note is not None and not each.not_finite:
                each.not_finite.append(note)
        return bool(noted) and not self._refuses

    def _progress(self, begin: int, end: int, groups: int) -> tuple[Progress | None, int, int]:
        """Return where to record the progress of elements `begin:end`, where to stop, and how many groups count. If
        only the sum of a block is known, it stops after that block.
        """
        progress = self.journal.progress(begin)
        if progress is not None and progress.is_summed:
            return progress, min(end, begin + self.journal.length), self.journal.groups
        self.journal.groups = groups
        return progress, end, groups

    def take_(
        self, start: int, stop: int, answer: np.ndarray, centre: np.ndarray | None, targets: Iterable[np.ndarray]
    ) -> None:
        """Keep the answer of other servers to a round of these elements, and write it to the targets."""
        np.copyto(self._kept(start, stop), answer)
        if centre is not None:
            np.copyto(cut(self.centre, self._start, start, stop), centre)
        self.give_(start, stop, targets)

    def give_(self, start: int, stop: int, targets: Iterable[np.ndarray]) -> None:
        """Write the answer of the last round of these elements to the targets."""
        for target in targets:
            np.copyto(target, self._kept(start, stop))

    def forget(self, group: int | None = None) -> None:
        """Do not continue rounds of an earlier process: those of this group alone, or all."""
        self.journal.forget(group)

    def _shaped(self, array: np.ndarray) -> np.ndarray:
        """Return an array of the chunk in its shape, without padding."""
        return array[: math.prod(self._shape)].reshape(self._shape)

    def _kept(self, start: int, stop: int) -> np.ndarray:
        """Return the answer of the last round of these elements."""
        return cut(self.centre if self.rule.answer_is_new_value else self._state[0], self._start, start, stop)

    def _refused(self, contributions: Iterable[Contribution], start: int, stop: int) -> Refused:
        """Return the groups with NaN or Inf among elements `start:stop`."""
        begins, found = start - self._start, not_finite_of(contributions, start, stop)
        return {each.origin.group: NotFiniteError(not_finite(row, self.name, begins)) for each, _, row in found}

    def _advance(self, start: int, stop: int) -> None:
        """Count rounds: when elements are in a round for the second time, the next step of the rule begins."""
        runs = self._computed
        if not self.steps or any(a < stop and start < b for a, b in runs):
            self.steps, self._computed = self.steps + 1, [(start, stop)]
        elif runs[-1][1] == start:
            runs[-1] = (runs[-1][0], stop)
        else:
            runs.append((start, stop))
