"""Reduction in a ring. Each rank sends only to the next one, so that all links are in use all the time.

For n bytes and p ranks, each rank sends `2 (p - 1) / p n` bytes in `2 (p - 1)` messages (Patarasuk and Yuan, 2009). The
rank after rank r is r + `way`; `way` is 1, or -1 for the ring in the other direction.
"""

from __future__ import annotations

import numpy as np

from hybridps.tensor_collectives.between_nodes.talk import Steps, Talk


def allreduce(talk: Talk, part: np.ndarray, way: int = 1) -> Steps:
    """Replace `part` by the combination of all ranks' parts."""
    blocks = np.array_split(part, talk.size)
    yield from reduce_scatter(talk, blocks, way)
    talk.round_(blocks[talk.rank])
    yield from allgather(talk, blocks, way)


def multi_ring(talk: Talk, part: np.ndarray) -> Steps:
    """Do the same as `allreduce`, with every other chunk in the opposite direction, which uses other links."""
    yield from allreduce(talk, part, -1 if talk.tag % 2 else 1)


def reduce_scatter(talk: Talk, blocks: list[np.ndarray], way: int = 1) -> Steps:
    """Replace block `talk.rank` by the combination of all ranks' blocks of that number. Others are overwritten."""
    p, me = talk.size, talk.rank
    for step in range(1, p):
        given, taken = (me - way * step) % p, (me - way * (step + 1)) % p
        yield from talk.swap(blocks[given], (me + way) % p, blocks[taken], (me - way) % p, True)


def allgather(talk: Talk, blocks: list[np.ndarray], way: int = 1) -> Steps:
    """Replace block r by that of rank r, for every r, on all ranks."""
    p, me = talk.size, talk.rank
    for step in range(p - 1):
        given, taken = (me - way * step) % p, (me - way * (step + 1)) % p
        yield from talk.swap(blocks[given], (me + way) % p, blocks[taken], (me - way) % p, False)
