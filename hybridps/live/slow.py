"""Which workers are slower than the others, judged by the time of their own part of a step, and why. Pure.

Ranks that train in step have the same step time, however slow one of them is. So each rank's *own* time is compared. A
worker is slow if its own time is `factor` times the median of the others', and if that costs at least `LEAST_SHARE` of
a step and `LEAST_SECONDS`. It is reported after `LOOKS` such looks in a row (`LOOKS_IF_CROWDED` on a host with too few
cores), and has recovered after as many looks at less than half of the excess.

A look compares medians. With a CPU limit, some steps take twice as long and others hardly longer, so the median of a
few steps varies. The means count instead if the medians show at least half of the excess, or if the look before has
shown all of it.

Medians do not show a worker that stalls in a few steps only. So the means of the last `MOST_LOOKS` looks are compared
too, without the worst look: a worker that stalled once has not been slow.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from statistics import fmean, median
from typing import Literal, NamedTuple

Reason = Literal["cpu", "compute", "loader", "pauses", "link"]

REASONS: dict[str, str] = {
    "cpu": "its threads wait for cores that other processes use or a CPU limit withholds",
    "compute": "it computes longer",
    "loader": "its program begins the step later: the loader, or other Python code",
    "pauses": "it computes no more than the others: it waits for data, or is stopped at times",
    "link": "its exchanges with the servers take longer",
}
"""The meaning of each reason, in words."""

LOOKS = 3
"""The number of looks in a row that must agree before a worker is reported, or has recovered."""

LOOKS_IF_CROWDED = 10
"""The same if a host has more workers than cores: within tenths of a second, the operating system does not share out
cores evenly."""

HALF = 0.5
"""The share of the excess that makes a worker slow: with this much, a worker that was named stays so, and the means of
another one are looked at."""

MOST_LOOKS = 16
"""The number of looks over which the means are compared."""

LEAST_SHARE = 0.1
"""The least cost of a slow worker, as a share of a step."""

LEAST_SECONDS = 0.002
"""The least cost of a slow worker in a step. With less, noise of the operating system would be reported."""


class Measured(NamedTuple):
    """The times of a worker: medians over the steps since the last look, in seconds."""

    step_seconds: float
    own_seconds: float
    """From the end of the last step's communication to the arrival of the last gradient, or from one step of the
    program to the next if that takes longer; at least the CPU time, if ranks have no more than a core each."""
    program_seconds: float
    """The part of it before the program begins the step: its loader and other code; nan if it is not known."""
    cpu_seconds: float
    """The CPU time of the process, without that of the communication thread."""
    delayed_seconds: float = math.nan
    """The time in which one of its threads was ready and waited for a core; nan if it is not known."""
    mean_own_seconds: float = math.nan
    """The mean over the same steps; nan if it is not known. So the next two."""
    mean_program_seconds: float = math.nan
    mean_step_seconds: float = math.nan


class Slow(NamedTuple):
    """A worker that is slower than the others."""

    own_seconds: float
    others_seconds: float
    """The median of the others."""
    reason: Reason


class Changes(NamedTuple):
    """The result of a look: workers that are slow now, and those that keep up again, by their places."""

    slow: dict[int, Slow]
    recovered: list[int]


class SlowWorkers:
    """Compares the workers at each `look`. They are given in the same order each time."""

    def __init__(self, factor: float, size: int, looks: int = LOOKS) -> None:
        self._factor = factor
        self._looks = looks
        self._alike = [0] * size
        """For each worker, the number of looks in a row that contradict its present state."""
        self._was_slow = [False] * size
        """For each worker, whether its last look was that of a slow one."""
        self._stalled = deque[bool](maxlen=MOST_LOOKS)
        """Whether any worker stalled, in the last looks."""
        self._seen: list[deque[tuple[Measured, Measured]]] = [deque(maxlen=MOST_LOOKS) for _ in range(size)]
        """The last looks at each worker, by means: the worker, and the median of the others."""
        self._in_bursts = set[int]()
        """The workers that were named by their means."""
        self.named: dict[int, Slow] = {}
        """The workers that are slow now."""

    @property
    def suspects(self) -> bool:
        """Whether anybody is or may soon be named, so that the next looks must find out why."""
        return bool(self.named) or any(self._alike) or any(self._stalled)

    def look(self, measured: Sequence[Measured], judged: Collection[int] | None = None) -> Changes:
        """Compare the workers. One whose own time is nan does not count.

        `judged`: the places of those that were measured since the last look, or None for all. The others' times are
        only what these are compared with, because a time that is seen twice says no more than once.
        """
        slow, recovered, stalled = dict[int, Slow](), list[int](), False
        for place, mine in enumerate(measured):
            others = [each for other, each in enumerate(measured) if other != place and each.own_seconds >= 0]
            if not others or not mine.own_seconds >= 0 or (judged is not None and place not in judged):
                continue
            usual, seen = _medians(others), self._seen[place]
            seen.append((_by_means(mine), _by_means(usual)))
            stalled |= self._is_slow(*seen[-1])
            is_named = place in self.named
            steadily = self._is_slow(mine, usual, by=HALF if is_named else 1.0)
            may_vary = not is_named and (self._was_slow[place] or self._is_slow(mine, usual, by=HALF))
            if not steadily and may_vary and self._is_slow(*seen[-1]):
                steadily, (mine, usual) = True, seen[-1]
            self._was_slow[place] = steadily
            in_bursts = not steadily and self._stalls(place)
            if (steadily or in_bursts) == is_named:
                self._alike[place] = 0
                continue
            self._alike[place] += 1
            if self._alike[place] < self._looks:
                continue
            self._alike[place] = 0
            if is_named:
                del self.named[place]
                self._in_bursts.discard(place)
                seen.clear()
                recovered.append(place)
            else:
                if in_bursts:
                    self._in_bursts.add(place)
                    mine, usual = _means(seen)
                slow[place] = self.named[place] = Slow(mine.own_seconds, usual.own_seconds, reason_of(mine, usual))
        self._stalled.append(stalled)
        return Changes(slow, recovered)

    def _is_slow(self, mine: Measured, usual: Measured, by: float = 1.0) -> bool:
        """Return whether a worker has more than this share of the excess that makes a worker slow."""
        excess = mine.own_seconds - usual.own_seconds
        least = max((self._factor - 1) * usual.own_seconds, LEAST_SHARE * mine.step_seconds, LEAST_SECONDS)
        return excess > by * least

    def _stalls(self, place: int) -> bool:
        """Return whether the means of the last looks, without the worst, are those of a slow worker."""
        seen, is_named = self._seen[place], place in self.named
        if len(seen) < MOST_LOOKS or (is_named and place not in self._in_bursts):
            return False
        worst = max(range(len(seen)), key=lambda look: seen[look][0].own_seconds - seen[look][1].own_seconds)
        mine, usual = _means(each for look, each in enumerate(seen) if look != worst)
        return self._is_slow(mine, usual, by=HALF if is_named else 1.0)


def reason_of(mine: Measured, usual: Measured) -> Reason:
    """Return where more than half of a slow worker's excess over the `usual` times comes from, as far as known."""

    def excess(field: str) -> float:
        expected = float(getattr(usual, field))
        return float(getattr(mine, field)) - (0.0 if math.isnan(expected) else expected)

    half = 0.5 * excess("own_seconds")
    if excess("delayed_seconds") > half:
        return "cpu"
    if excess("cpu_seconds") > half:
        return "compute"
    if math.isnan(mine.program_seconds):
        return "pauses"
    return "loader" if excess("program_seconds") > half else "compute"


def _medians(workers: Sequence[Measured]) -> Measured:
    """Return the median of each figure over the workers that know it."""
    return _each_figure(workers, median)


def _means(seen: Iterable[tuple[Measured, Measured]]) -> tuple[Measured, Measured]:
    """Return the means over several looks at a worker, and at the others."""
    mine, others = zip(*seen, strict=True)
    return _each_figure(mine, fmean), _each_figure(others, fmean)


def _each_figure(measured: Sequence[Measured], combine: Callable[[list[float]], float]) -> Measured:
    columns = ([value for value in column if not math.isnan(value)] for column in zip(*measured, strict=True))
    return Measured(*(combine(known) if known else math.nan for known in columns))


def _by_means(measured: Measured) -> Measured:
    """Return the same steps by their means instead of their medians, where these are known."""
    return measured._replace(own_seconds=measured.mean_own_seconds, program_seconds=measured.mean_program_seconds)
