"""Where a worker thread records the progress of the round that it computes, in memory that outlives the process."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hybridps.ps.rules.progress import LENGTH, WORD

PLACE, RANGE, START, STOP, STEP, GROUPS, COUNT, SUMMED, WORDS = *range(2, 10), 16
"""The words after those of `Progress`: the chunk's place, the round's index among the chunk's ranges, its elements, its
number for the rule, how many groups' values it has, its contributions, and 1 + the element whose block's sum is kept
although nothing is being changed."""

STOP_FIELD, STEP_FIELD, ROW_FIELD = 3, 4, 5
"""Indices of fields of a `Mark`, which is a row of int64. An entry is the number of a group followed by such a row."""

REFUSED, FAILED = -2, -3
"""Values in the field of the row: the contribution was refused, or its round has failed."""


class Mark(NamedTuple):
    """A contribution that counts in a round of elements `start:stop`: its origin, and the round's number for the rule.

    It had NaN or Inf in `row` at `element`, unless `row` is negative. It does not count if `row` is `REFUSED` or
    `FAILED`. `values`: how many contributions to these elements the group had made by then, if the clock counts them.
    """

    epoch: int
    request: int
    start: int
    stop: int
    step: int
    row: int
    element: int
    values: int = 0


class Area(NamedTuple):
    """The memory that records an incomplete round. `saves_sum`: as in `Progress`."""

    words: np.ndarray
    entries: np.ndarray
    saved: np.ndarray
    saves_sum: bool

    @property
    def next(self) -> int:
        """The first element that is not done."""
        return int(self.words[WORD] >> 1) - 1

    @property
    def is_changed(self) -> bool:
        """Whether the block at `next` may have been changed."""
        return bool(self.words[WORD] & 1)

    @property
    def is_summed(self) -> bool:
        """Whether the sum of the block at `next` is kept."""
        return self.saves_sum and bool(self.is_changed or self.words[SUMMED] == self.next + 1)

    @property
    def groups(self) -> int:
        """How many groups' values the round has."""
        return int(self.words[GROUPS])

    @property
    def step(self) -> int:
        """The number of the round for the rule."""
        return int(self.words[STEP])

    @property
    def range(self) -> tuple[int, int]:
        """The elements of the round."""
        return int(self.words[START]), int(self.words[STOP])

    @property
    def ids(self) -> list[tuple[int, ...]]:
        """The group, epoch and request of each contribution."""
        return [tuple(each) for each in self.entries[: self.words[COUNT], :3].tolist()]

    def move_to(self, other: Area) -> None:
        """Record the round in another area, with the sum of its next block if that is kept."""
        other.words[WORD] = 0
        if self.is_summed:
            np.copyto(other.saved[0], self.saved[0])
        np.copyto(other.entries, self.entries)
        other.words[LENGTH:] = self.words[LENGTH:]
        other.words[SUMMED] = self.next + 1 if self.is_summed else 0
        other.words[WORD] = self.words[WORD] & ~1
        self.words[WORD] = 0


def write_marks(area: Area, marks: np.ndarray) -> None:
    """Mark the contributions of a round as counted or refused."""
    entries = area.entries[: area.words[COUNT]]
    marks[area.words[RANGE]][entries[:, 0]] = entries[:, 1:]
