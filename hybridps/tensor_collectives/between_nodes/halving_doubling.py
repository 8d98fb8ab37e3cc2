"""Recursive halving and doubling. It sends as few bytes as a ring, in `2 log2 p` steps instead of `2 (p - 1)`.

If p is not a power of two, each surplus rank first hands its part to a neighbour, and at the end receives the result
from it (Rabenseifner, 2004).
"""

from __future__ import annotations

import numpy as np

from hybridps.tensor_collectives.between_nodes.talk import Steps, Talk


def halving_doubling(talk: Talk, part: np.ndarray) -> Steps:
    """Replace `part` by the combination of all ranks' parts."""
    power = 1 << (talk.size.bit_length() - 1)
    extra = talk.size - power
    nothing = part[:0]
    paired = talk.rank < 2 * extra
    if paired and talk.rank % 2 == 0:
        yield from talk.swap(part, talk.rank + 1, nothing, talk.rank + 1, False)
        yield from talk.swap(nothing, talk.rank + 1, part, talk.rank + 1, False)
        return
    if paired:
        yield from talk.swap(nothing, talk.rank - 1, part, talk.rank - 1, True)
    yield from _among_power_of_two(talk, part, power, extra)
    if paired:
        yield from talk.swap(part, talk.rank - 1, nothing, talk.rank - 1, False)


def _among_power_of_two(talk: Talk, part: np.ndarray, power: int, extra: int) -> Steps:
    """Exchange among `power` ranks: the odd ones of the first `2 * extra` ranks, and all later ones."""
    me = talk.rank // 2 if talk.rank < 2 * extra else talk.rank - extra
    mine, halves = part, []
    distance = power // 2
    while distance:
        other = me ^ distance
        peer = 2 * other + 1 if other < extra else other + extra
        middle = len(mine) // 2
        kept, given = (mine[middle:], mine[:middle]) if me & distance else (mine[:middle], mine[middle:])
        yield from talk.swap(given, peer, kept, peer, True)
        halves.append((kept, given, peer))
        mine = kept
        distance //= 2
    talk.round_(mine)
    for kept, given, peer in reversed(halves):
        yield from talk.swap(kept, peer, given, peer, False)
