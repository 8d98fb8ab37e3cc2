"""The memory of a chunk. Only the worker that owns the chunk uses it, so nothing is locked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from hybridps.ps.model import Contribution
from hybridps.ps.rules import AnyRule, add_up_, apply_
from hybridps.ps.rules.finite import NotFiniteError, check_finite, is_finite, not_finite
from hybridps.ps.rules.kernel import BLOCK

SENT = -1
"""Stands for the groups that an answer is sent to."""

Outlets = Mapping[int, Sequence[np.ndarray]]
"""Where answers are written, by group or `SENT`: arrays of the length of the round's elements."""

Refused = dict[int, NotFiniteError]
"""Groups whose values did not count, and why."""


class ChunkMemory:
    """The centre of a chunk and the state of its rule: flat arrays of equal length and dtype.

    `start`: the chunk's first element in the flat buffer; elements are counted there. `refuses`: values with NaN or
    Inf do not count. The values of a round are added in the order of their groups, whenever they come: the same values
    make the same bits.
    """

    def __init__(
        self, name: str, start: int, rule: AnyRule, centre: np.ndarray, state: list[np.ndarray], refuses: bool
    ) -> None:
        self.name = name
        self.rule = rule
        self.centre = centre
        self._start = start
        self._state = state
        self._refuses = refuses
        self._steps = 0
        self._computed: list[tuple[int, int]] = []
        """Elements whose last round is number `_steps`, as runs."""
        self._total: np.ndarray | None = None
        """The sum of contributions to the round under way that were added early, of `_counted` groups."""
        self._left = 0
        """Elements of that sum that are in no complete round yet."""
        self._counted = 0
        self._early: Refused = {}
        """Refused when they were added early: they are told when the round ends."""

    def reset_(self, initial: np.ndarray | None) -> None:
        """Initial values, or zeros, become the centre. Raises NotFiniteError, and changes nothing."""
        if initial is not None and self._refuses:
            check_finite(initial, self.name)
        self._steps, self._computed = 0, []
        self.centre[:] = 0 if initial is None else initial
        for array in self._state:
            array[:] = 0

    def kept(self, start: int, stop: int) -> np.ndarray:
        """The answer of the last round of these elements."""
        whole = self.centre if self.rule.answer_is_new_value else self._state[0]
        return whole[start - self._start : stop - self._start]

    def forget_(self) -> None:
        """The round under way is void."""
        self._total, self._left, self._counted, self._early = None, 0, 0, {}

    def add_(self, contributions: Sequence[Contribution]) -> None:
        """Add contributions of the whole chunk to the round under way, before it is complete."""
        rows, groups, refused = self._usable(contributions, self._start, self._start + len(self.centre))
        self._early |= refused
        self._left = len(self.centre)
        if rows:
            begun = [] if self._total is None else [self._total]
            self._total = np.empty_like(self.centre) if self._total is None else self._total
            add_up_(self._total, [*begun, *rows])
        self._counted += groups

    def sum_(
        self, start: int, stop: int, contributions: Sequence[Contribution], out: np.ndarray
    ) -> tuple[int, Refused]:
        """The sum of a round of elements `start:stop`, for the parents; of how many groups, and who is refused."""
        rows, groups, refused = self._usable(contributions, start, stop)
        early, counted, refused_early = self._take_early(start, stop)
        if early or rows:
            add_up_(out, [*early, *rows])
        else:
            out[:] = 0
        return counted + groups, refused_early | refused

    def apply_(self, start: int, stop: int, contributions: Sequence[Contribution], outlets: Outlets) -> Refused:
        """A round of elements `start:stop`: update them, and write the answer to the outlets. Who is refused.

        The rule runs on the values of all groups up to the block in which one of them is not finite, and goes on from
        there without that group.
        """
        early, counted, refused = self._take_early(start, stop)
        left = {each.origin.group: each for each in contributions}
        to = {group: arrays for group, arrays in outlets.items() if group not in refused}
        begin, end, check = start, stop, self._refuses
        advanced = False
        while begin < stop and (early or left):
            rows = [cut(row, start, begin, end) for row in early]
            rows += [row for each in left.values() for row in _rows(each, begin, end)]
            targets = [cut(array, start, begin, end) for arrays in to.values() for array in arrays]
            count = counted + sum(each.groups for each in left.values())
            if not count and not self.rule.separate:  # values of no group
                self._give(begin, end, targets)
                break
            if not advanced:
                self._advance(start, stop)
                advanced = True
            begin += self._run_rule(begin, end, rows, targets, count, check)
            over = begin >= min(end, stop)
            end, check = stop, self._refuses
            if not over:
                found = self._not_finite(left.values(), begin, min(begin + BLOCK, stop))
                if not found:  # all are finite, but for their sum
                    end, check = min(begin + BLOCK, stop), False
                for group, error in found.items():
                    refused[group] = error
                    del left[group]
                    to.pop(group, None)
        return refused

    def take_(self, start: int, stop: int, answer: np.ndarray, centre: np.ndarray | None, outlets: Outlets) -> None:
        """The answer of other servers to a round of these elements is kept, and written to the outlets."""
        np.copyto(self.kept(start, stop), answer)
        if centre is not None:
            np.copyto(self.centre[start - self._start : stop - self._start], centre)
        self.give_(start, stop, outlets)

    def give_(self, start: int, stop: int, outlets: Outlets) -> None:
        """Write what was kept of the last round to the outlets."""
        self._give(start, stop, [array for arrays in outlets.values() for array in arrays])

    def _usable(
        self, contributions: Sequence[Contribution], start: int, stop: int
    ) -> tuple[list[np.ndarray], int, Refused]:
        """Elements `start:stop` of the rows that count, how many groups they stand for, and who is refused."""
        refused = self._not_finite(contributions, start, stop) if self._refuses else {}
        taken = [each for each in contributions if each.origin.group not in refused]
        return [row for each in taken for row in _rows(each, start, stop)], sum(each.groups for each in taken), refused

    def _run_rule(
        self, start: int, stop: int, rows: list[np.ndarray], targets: list[np.ndarray], values: int, check: bool
    ) -> int:
        part = slice(start - self._start, stop - self._start)
        state = [array[part] for array in self._state]
        return apply_(
            self.rule,
            rows,
            targets,
            self.centre[part],
            state,
            step=self._steps,
            contributions=values,
            check_finite=check,
        )

    def _take_early(self, start: int, stop: int) -> tuple[list[np.ndarray], int, Refused]:
        """What was added early to a round of elements `start:stop`."""
        total = [] if self._total is None else [cut(self._total, self._start, start, stop)]
        early = total, self._counted, dict(self._early)
        self._left -= stop - start
        if self._left <= 0:
            self.forget_()
        return early

    def _give(self, start: int, stop: int, targets: Sequence[np.ndarray]) -> None:
        values = self.kept(start, stop)
        for target in targets:
            np.copyto(target, values)

    def _not_finite(self, contributions: Iterable[Contribution], start: int, stop: int) -> Refused:
        """Who brought NaN or Inf among elements `start:stop`."""
        refused: Refused = {}
        for each in contributions:
            row = next((row for row in _rows(each, start, stop) if not is_finite(row)), None)
            if row is not None:
                refused[each.origin.group] = NotFiniteError(not_finite(row, self.name, start - self._start))
        return refused

    def _advance(self, start: int, stop: int) -> None:
        """Count the rounds: elements that are in one for the second time begin the next step of the rule."""
        runs = self._computed
        if not self._steps or any(a < stop and start < b for a, b in runs):
            self._steps, self._computed = self._steps + 1, [(start, stop)]
        elif runs[-1][1] == start:
            runs[-1] = (runs[-1][0], stop)
        else:
            runs.append((start, stop))


def cut(array: np.ndarray, begins: int, start: int, stop: int) -> np.ndarray:
    """Elements `start:stop` of an array whose first element is number `begins`."""
    return array[start - begins : stop - begins]


def _rows(contribution: Contribution, start: int, stop: int) -> list[np.ndarray]:
    return [cut(row, contribution.span.start, start, stop) for row in contribution.rows]
