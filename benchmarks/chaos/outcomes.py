"""The outcomes of the faults: how many were survived, and how long recovery took. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any, NamedTuple

from benchmarks.chaos.schedule import Fault


class Outcome(NamedTuple):
    """A fault that was injected. Times are seconds of a monotonic clock.

    `recovered`: when its victim made progress again; None if it never did.
    """

    fault: Fault
    injected: float
    recovered: float | None

    @property
    def took(self) -> float | None:
        """The seconds from the fault, or from its end if it ends by itself, until the victim made progress again."""
        return None if self.recovered is None else self.recovered - self.injected - self.fault.lasts


def by_kind(outcomes: Sequence[Outcome]) -> dict[str, dict[str, Any]]:
    """Return for each kind the numbers injected and survived, and the seconds until the victim made progress again."""
    found: dict[str, dict[str, Any]] = {}
    for kind in sorted({outcome.fault.kind for outcome in outcomes}):
        mine = [outcome for outcome in outcomes if outcome.fault.kind == kind]
        taken = [outcome.took for outcome in mine if outcome.took is not None]
        found[kind] = {"injected": len(mine), "survived": len(taken)}
        if taken:
            found[kind] |= {"median_seconds": median(taken), "longest_seconds": max(taken)}
    return found


def lines_of(kinds: dict[str, dict[str, Any]]) -> list[str]:
    """Return the result of `by_kind` as lines of text."""
    lines = []
    for kind, found in kinds.items():
        times = ""
        if "median_seconds" in found:
            times = f", back after {found['median_seconds']:.2f} s (median), {found['longest_seconds']:.2f} s (longest)"
        lines.append(f"{kind}: {found['survived']} of {found['injected']} survived{times}")
    return lines


def quiet_spans(outcomes: Sequence[Outcome], begin: float, end: float) -> list[tuple[float, float]]:
    """Return the spans of time from `begin` to `end` in which no fault was still to be recovered from."""
    spans, since = [], begin
    for outcome in sorted(outcomes, key=lambda outcome: outcome.injected):
        if outcome.injected >= end:
            break
        if outcome.injected > since:
            spans.append((since, outcome.injected))
        since = max(since, end if outcome.recovered is None else outcome.recovered)
    return [*spans, (since, end)] if since < end else spans
