"""How far a round of a chunk is computed, in memory that outlives the process that computes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

WORD, LENGTH = 0, 1
"""Of `Progress.words`: how far the round is, and how many elements the block has that is changed.

`WORD` is 0 while no round is under way. Else it is 2 (n + 1) if elements before n of the flat buffer are done, plus 1
while the block that begins with n is changed.
"""


class Progress(NamedTuple):
    """Of a round from element `start` of the flat buffer on. One thread writes it.

    Whoever finds this after the death of the process can undo the block that was being changed, and go on there. The
    sum of the contributions is kept, as answers may have overwritten them.
    """

    words: np.ndarray
    """int64. See `WORD` and `LENGTH`."""
    saved: np.ndarray
    """Of the block that is changed: the sum of the contributions, and then the centre and the states as they were, if
    they are needed. A row each, as long as the largest block."""
    start: int = 0
    is_summed: bool = False
    """Whether the sum of the first block is there already."""

    def begin(self, arrays: Sequence[np.ndarray], length: int) -> None:
        """The first `length` elements are about to be changed. `arrays`: the sum, the centre and the states."""
        for row, array in zip(self.saved, arrays, strict=False):
            np.copyto(row[:length], array[:length])
        self.words[LENGTH] = length
        self.words[WORD] = 2 * (self.start + 1) + 1

    def end(self, length: int) -> None:
        """The first `length` elements are done."""
        self.words[WORD] = 2 * (self.start + length + 1)


NONE = {kind: Progress(np.zeros(0, np.int64), np.zeros((0, 0), kind)) for kind in (np.float32, np.float64)}
"""Nothing is noted."""
