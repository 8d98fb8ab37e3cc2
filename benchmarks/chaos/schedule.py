"""Which fault happens when, and to whom: a pure function of the seed."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Victim(NamedTuple):
    """A worker of a group by its rank, or a server by its number."""

    place: int
    rank: int = 0


class Fault(NamedTuple):
    """`seconds`: when it is due, since the beginning. `lasts`: how many seconds it lasts, if it ends by itself."""

    seconds: float
    kind: str
    victim: Victim
    lasts: float = 0.0


LASTS = {"stop": (1.0, 5.0), "freeze": (12.0, 15.0), "pause": (0.0, 1.0), "vanish": (0.0, 0.5)}
"""Kinds that end by themselves, with the shortest and the longest time in seconds."""


def make_schedule(seed: int, victims: Mapping[str, Sequence[Victim]], count: int, seconds: float) -> list[Fault]:
    """Return `count` faults within `seconds`, ascending. `victims`: those that each kind may hit.

    Each kind occurs as often as any other, or once more.

    >>> schedule = make_schedule(1, {"stop": [Victim(0)], "kill-server": [Victim(0)]}, 4, 60.0)
    >>> sorted(fault.kind for fault in schedule)
    ['kill-server', 'kill-server', 'stop', 'stop']
    >>> schedule == make_schedule(1, {"stop": [Victim(0)], "kill-server": [Victim(0)]}, 4, 60.0)
    True
    """
    chance = random.Random(seed)
    names = list(victims)
    kinds = [names[number % len(names)] for number in range(count)]
    chance.shuffle(kinds)
    times = sorted(chance.uniform(0, seconds) for _ in range(count))
    return [
        Fault(when, kind, chance.choice(victims[kind]), chance.uniform(*LASTS.get(kind, (0.0, 0.0))))
        for when, kind in zip(times, kinds, strict=True)
    ]
