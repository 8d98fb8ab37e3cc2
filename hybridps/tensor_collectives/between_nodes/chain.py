"""Broadcast and reduction along a chain of ranks, with several chunks under way at a time.

Each rank receives and sends every byte once. With many chunks, the time approaches that of a single link.
"""

from __future__ import annotations

import numpy as np

from hybridps.tensor_collectives.between_nodes.talk import Steps, Talk


def broadcast(talk: Talk, part: np.ndarray, root: int) -> Steps:
    """Replace `part` on all ranks by that of rank `root`."""
    place, nothing = (talk.rank - root) % talk.size, part[:0]
    if place > 0:
        before = (talk.rank - 1) % talk.size
        yield from talk.swap(nothing, before, part, before, False)
    if place < talk.size - 1:
        after = (talk.rank + 1) % talk.size
        yield from talk.swap(part, after, nothing, after, False)


def reduce(talk: Talk, part: np.ndarray, root: int) -> Steps:
    """Replace `part` of rank `root` by the combination of all ranks' parts. Those of other ranks are overwritten."""
    place, nothing = (talk.rank - root) % talk.size, part[:0]
    if place < talk.size - 1:
        after = (talk.rank + 1) % talk.size
        yield from talk.swap(nothing, after, part, after, True)
    if place > 0:
        before = (talk.rank - 1) % talk.size
        yield from talk.swap(part, before, nothing, before, False)
