"""Reduction in a ring: each rank sends only to the next one, and all links are in use all the time.

For n bytes and p ranks each rank sends `2 (p - 1) / p n` bytes in `2 (p - 1)` messages (Patarasuk and Yuan, 2009).
"""

from __future__ import annotations

import numpy as np

from hybridps.tensor_collectives.between_nodes.talk import Steps, Talk
from hybridps.tensor_collectives.tensor import part_sizes


def allreduce(talk: Talk, part: np.ndarray) -> Steps:
    """`part` becomes the combination of all ranks' parts."""
    blocks = cut(part, talk.size)
    yield from reduce_scatter(talk, blocks)
    talk.round_(blocks[talk.rank])
    yield from allgather(talk, blocks)


def multi_ring(talk: Talk, part: np.ndarray) -> Steps:
    """As `allreduce`, with every other chunk in the opposite direction, so that two rings use different links."""
    yield from allreduce(talk.reversed() if talk.tag % 2 else talk, part)


def reduce_scatter(talk: Talk, blocks: list[np.ndarray]) -> Steps:
    """Block `talk.rank` becomes the combination of all ranks' blocks of that number; others are overwritten."""
    p, me = talk.size, talk.rank
    for step in range(1, p):
        yield from talk.swap(blocks[(me - step) % p], (me + 1) % p, blocks[(me - step - 1) % p], (me - 1) % p, True)


def allgather(talk: Talk, blocks: list[np.ndarray]) -> Steps:
    """Block r becomes that of rank r, on all ranks."""
    p, me = talk.size, talk.rank
    for step in range(p - 1):
        yield from talk.swap(blocks[(me - step) % p], (me + 1) % p, blocks[(me - step - 1) % p], (me - 1) % p, False)


def cut(part: np.ndarray, size: int) -> list[np.ndarray]:
    """`part` in `size` blocks, as equal as possible."""
    ends = np.cumsum(part_sizes(len(part), size))
    return [part[start:stop] for start, stop in zip([0, *ends[:-1]], ends, strict=True)]
