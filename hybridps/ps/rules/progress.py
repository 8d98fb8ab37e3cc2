"""How far a round of a chunk is computed, in memory that outlives the process that computes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

WORD, LENGTH = range(2)
"""The words of `Progress.words`: how far the round is, and how many elements the block that is being changed has.

`WORD` is 0 while no round is under way. Otherwise it is 2 (n + 1) if elements before n of the flat buffer are done,
plus 1 while the block that begins with n is being changed.
"""


class Progress(NamedTuple):
    """The progress of a round from element `start` of the flat buffer on. Only the owning worker thread writes it.

    After the death of the process, another one can undo the block that was being changed, and continue there. If the
    answer must be written before the block is done, the sum of the contributions is saved too, because the answer may
    have overwritten them.
    """

    words: np.ndarray
    """An int64 array. See `WORD` and `LENGTH`."""
    saved: np.ndarray
    """The saved block, with rows as long as the largest block: the sum of the contributions, then the previous centre
    and states, if the update changes them."""
    start: int = 0
    saves_sum: bool = False
    """Whether the sum of each block is saved before the block is changed."""
    is_summed: bool = False
    """Whether the sum of the first block is there already."""

    def begin(self, arrays: Sequence[np.ndarray], length: int) -> None:
        """Note that the first `length` elements are about to be changed. `arrays`: the sum, centre and states."""
        first = 0 if self.saves_sum else 1
        for row, array in zip(self.saved[first:], arrays[first:], strict=False):
            np.copyto(row[:length], array[:length])
        self.words[LENGTH] = length
        self.words[WORD] = 2 * (self.start + 1) + 1

    def end(self, length: int) -> None:
        """Note that the first `length` elements are done."""
        self.words[WORD] = 2 * (self.start + length + 1)


NONE = {kind: Progress(np.zeros(0, np.int64), np.zeros((0, 0), kind)) for kind in (np.float32, np.float64)}
"""Progress that records nothing, by dtype."""
