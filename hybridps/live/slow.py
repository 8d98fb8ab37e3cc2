"""Which workers are slower than the others, judged by the time of their own part of a step, and why. Pure.

Ranks that train in step have the same step time, however slow one of them is. So each rank's *own* time is compared. A
worker is slow if its own time is `factor` times the median of the others', and if that costs at least `LEAST_SHARE` of
a step and `LEAST_SECONDS`. It is reported after `LOOKS` such looks in a row, and has recovered after as many looks at
less than half of the excess.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Literal, NamedTuple

Reason = Literal["cpu", "compute", "loader", "pauses", "link"]

REASONS: dict[Reason, str] = {
    "cpu": "its threads wait for cores that other processes use or a CPU limit withholds",
    "compute": "it computes longer",
    "loader": "its program begins the step later: the loader, or other Python code",
    "pauses": "it computes no more than the others: it waits for data, or is stopped at times",
    "link": "its exchanges with the servers take longer",
}
"""The meaning of each reason, in words."""

LOOKS = 3
"""The number of looks in a row that must agree before a worker is reported, or has recovered."""

LEAST_SHARE = 0.1
"""The least cost of a slow worker, as a share of a step."""

LEAST_SECONDS = 0.002
"""The least cost of a slow worker in a step. With less, noise of the operating system would be reported."""


class Measured(NamedTuple):
    """The times of a worker: medians over the steps since the last look, in seconds."""

    step_seconds: float
    own_seconds: float
    """From the end of the last step's communication to the arrival of the last gradient."""
    program_seconds: float
    """The part of it before the program begins the step: its loader and other code; nan if it is not known."""
    cpu_seconds: float
    """The CPU time of the process, of all its threads."""
    delayed_seconds: float = math.nan
    """The time in which its threads were ready and waited for a core; nan if it is not known."""


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

    def __init__(self, factor: float, size: int) -> None:
        self._factor = factor
        self._alike = [0] * size
        """For each worker, the number of looks in a row that contradict its present state."""
        self.named: dict[int, Slow] = {}
        """The workers that are slow now."""

    def suspects(self, place: int) -> bool:
        """Return whether the last look found this worker slow, so that the next ones must find out why."""
        return place in self.named or self._alike[place] > 0

    def look(self, measured: Sequence[Measured]) -> Changes:
        """Compare the workers. One without steps since the last look has an own time of nan, and does not count."""
        slow, recovered = dict[int, Slow](), list[int]()
        for place, mine in enumerate(measured):
            others = [each for other, each in enumerate(measured) if other != place and each.own_seconds >= 0]
            if not others or not mine.own_seconds >= 0:
                continue
            usual = median(each.own_seconds for each in others)
            is_named = place in self.named
            if self._is_slow(mine, usual, is_named) == is_named:
                self._alike[place] = 0
                continue
            self._alike[place] += 1
            if self._alike[place] < LOOKS:
                continue
            self._alike[place] = 0
            if is_named:
                del self.named[place]
                recovered.append(place)
            else:
                slow[place] = self.named[place] = Slow(mine.own_seconds, usual, reason_of(mine, others))
        return Changes(slow, recovered)

    def _is_slow(self, mine: Measured, usual: float, is_named: bool) -> bool:
        """Return whether a worker is slow. Half of the excess that makes a worker slow keeps it slow."""
        enough = 0.5 if is_named else 1.0
        excess = mine.own_seconds - usual
        least = max((self._factor - 1) * usual, LEAST_SHARE * mine.step_seconds, LEAST_SECONDS)
        return excess > enough * least


def reason_of(mine: Measured, others: Sequence[Measured]) -> Reason:
    """Return where more than half of a slow worker's excess comes from, as far as it is known."""

    def excess(field: str) -> float:
        known = [value for each in others if not math.isnan(value := getattr(each, field))]
        return float(getattr(mine, field)) - (median(known) if known else 0.0)

    half = 0.5 * excess("own_seconds")
    if excess("delayed_seconds") > half:
        return "cpu"
    if excess("cpu_seconds") > half:
        return "compute"
    if math.isnan(mine.program_seconds):
        return "pauses"
    return "loader" if excess("program_seconds") > half else "compute"
