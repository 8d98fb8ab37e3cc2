"""What the groups of a run have sent to each other, from the events of their leaders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from hybridps.events import Closed, Communicated, Configured, Event, Exchanged, Planned, Skipped
from hybridps.quantities import counted, rounded

Curve = list[tuple[float, float]]
"""Pairs of a time, in seconds since 1970, and a value."""


class _Before(NamedTuple):
    """What the earlier lives of a group have done."""

    steps: int = 0
    nbytes: int = 0
    bytes_to_servers: int = 0


@dataclass
class GroupTraffic:
    """What one group has sent and received. It takes the events of a rank one by one; only leaders count.

    If the group is restarted in the same launch, all of its lives count.
    """

    began: float = 0.0
    """When its leader was configured, in seconds since 1970."""
    launch: str | None = None
    """The id of its launch."""
    is_leader: bool = False
    group: int = 0
    groups: int = 1
    has_servers: bool = False
    bytes_to_servers: int = 0
    bytes_exchanged: int = 0
    """The payload bytes of exchanges of weights, without pulls at other times."""
    nbytes: Curve = field(default_factory=list)
    """The payload bytes that have crossed between this group and others, or the servers, in both directions."""
    steps: Curve = field(default_factory=list)
    """The number of steps done."""
    exchanges: Curve = field(default_factory=list)
    """The steps in which weights were exchanged."""
    skipped: set[int] = field(default_factory=set)
    """The steps in which an exchange was left out because a server was away."""
    distances: Curve = field(default_factory=list)
    """|w - centre| / |w| at the exchanges that know it."""
    _before: _Before = _Before()

    def add(self, event: Event, when: float) -> None:
        """Count an event. The `Configured` event of another launch resets all counts."""
        match event:
            case Configured():
                launch = event.settings.get("launch")
                if launch and launch == self.launch:
                    self._before = _Before(self.steps_done, self.total, self.bytes_to_servers)
                else:
                    vars(self).update(vars(GroupTraffic(began=event.started_at, launch=launch)))
            case Planned():
                self.is_leader = event.role == "worker" and event.group_rank == 0
                self.group, self.groups, self.has_servers = event.group, event.groups, bool(event.servers)
            case Communicated():
                grow(self.steps, when, self._before.steps + event.steps)
                self._count(event, when)
            case Exchanged():
                self._exchanged(event, when)
            case Skipped():
                self.skipped.add(self._before.steps + event.step)
            case Closed():
                steps = self._before.steps + event.steps
                grow(self.steps, self._done_at(steps, when), steps)
                self._count(event, when)

    def reach(self, steps: int, when: float) -> None:
        """Count the steps that the rank has begun in this life, the last of them at this time."""
        if self.steps_done < self._before.steps + steps:
            grow(self.steps, when, self._before.steps + steps)

    @property
    def total(self) -> int:
        return int(_last(self.nbytes))

    @property
    def steps_done(self) -> int:
        return int(_last(self.steps))

    @property
    def exchanged(self) -> int:
        """The number of steps in which weights were exchanged, or of all steps if gradients go to servers."""
        steps = len({step for _, step in self.exchanges})
        return self.steps_done if self.has_servers and self.bytes_to_servers and not steps else steps

    @property
    def saved(self) -> int:
        """The number of steps without an exchange; 0 if there is no other group and no server to exchange with."""
        return max(0, self.steps_done - self.exchanged) if self.groups > 1 or self.exchanged else 0

    def bytes_at(self, when: float, start: float) -> float:
        """Return the payload bytes that had crossed by a time. They are exact if weights are exchanged.

        Gradients cross in every step: their bytes are interpolated between samples, or from 0 at `start` to the first
        one.
        """
        if self.exchanges:
            return max((value for time, value in self.nbytes if time <= when), default=0.0)
        before = [(start, 0.0)] if self.nbytes and start < self.nbytes[0][0] else []
        return float(at(before + self.nbytes, np.array([when]))[0])

    def _done_at(self, steps: int, closed: float) -> float:
        """Return about when the last steps were done, as fast as the earlier ones: a leader may close much later."""
        if len(self.steps) < 2:
            return closed
        (began, first), (last, done) = self.steps[0], self.steps[-1]
        return min(closed, last + (steps - done) * (last - began) / max(1.0, done - first))

    def _count(self, event: Communicated | Closed, when: float) -> None:
        before, nbytes = self._before, event.bytes_to_servers + event.bytes_from_servers
        self.bytes_to_servers = before.bytes_to_servers + event.bytes_to_servers
        grow(self.nbytes, when, before.nbytes + nbytes)

    def _exchanged(self, event: Exchanged, when: float) -> None:
        step = self._before.steps + event.step
        self.exchanges.append((when, step))
        grow(self.steps, when, step + 1)
        if event.distance is not None:
            self.distances.append((when, event.distance))
        answers = event.nbytes if self.has_servers else 0  # answers of other groups count as sent by them
        self.bytes_exchanged += event.nbytes + answers
        grow(self.nbytes, when, self.total + event.nbytes + answers)


def grow(curve: Curve, when: float, value: float) -> None:
    """Add a count to a curve, which never goes back, in time or value.

    `Communicated` counts only steps that were made bucket by bucket, which is not the first one, and `Exchanged` has
    the number of the step among all: the larger count is right. A group may be restarted on a host with another clock.
    """
    last_time, last_value = curve[-1] if curve else (when, value)
    curve.append((max(when, last_time), max(value, last_value)))


def at(curve: Curve, times: np.ndarray) -> np.ndarray:
    """Return a growing curve's values at some times: 0 before it, its last value after it, interpolated between."""
    if not curve:
        return np.zeros(len(times))
    known, values = np.array(curve).T
    return np.interp(times, known, values, left=0.0)


def figures(groups: Sequence[GroupTraffic]) -> dict[str, Any]:
    """Return what all groups together have sent and saved.

    `exchanges_saved`: the steps of groups without an exchange. `exchanges_skipped`: those in which a group left one out
    because a server was away. `bytes_saved`: the bytes that exchanges in the saved steps would have sent. `staleness`:
    the mean number of steps that a group was behind the one furthest ahead, at its exchanges of weights. `distance`:
    the mean over the groups of the last one. None: not known.
    """
    exchanges = sum(group.exchanged for group in groups)
    across = sum(group.total for group in groups)
    saved = sum(group.saved for group in groups)
    last = [group.distances[-1][1] for group in groups if group.distances]
    behind = [lag for group in groups for lag in lags(group, groups)]
    return {
        "steps": max((group.steps_done for group in groups), default=0),
        "bytes_across_groups": across,
        "exchanges": exchanges,
        "exchanges_saved": saved,
        "exchanges_skipped": sum(len(group.skipped) for group in groups),
        "bytes_saved": round(sum(group.bytes_exchanged for group in groups) * saved / exchanges) if exchanges else 0,
        "staleness": float(np.mean(behind)) if behind else None,
        "distance": float(np.mean(last)) if last else None,
    }


def lags(group: GroupTraffic, groups: Sequence[GroupTraffic]) -> list[float]:
    """Return by how many steps the furthest of the other groups was ahead, at each exchange of a group."""
    if not group.exchanges:
        return []
    times, steps = np.array(group.exchanges).T
    ahead = [at(other.steps, times) - steps - 1 for other in groups if other is not group]
    return list(np.max([np.zeros(len(times)), *ahead], axis=0))


def in_words(totals: Mapping[str, Any]) -> str:
    """Return what was sent and saved, as part of a line; empty if there is nothing to say.

    >>> in_words({"bytes_across_groups": 12_300_000, "exchanges": 45, "exchanges_saved": 405})
    '12.3 MB across groups in 45 exchanges; 405 steps had none'
    >>> in_words({"bytes_across_groups": 0, "exchanges": 0, "exchanges_saved": 0})
    ''
    """
    if not (totals["exchanges"] or totals["exchanges_saved"]):
        return ""
    saved = f"; {counted(totals['exchanges_saved'], 'step')} had none" if totals["exchanges_saved"] else ""
    exchanges = counted(totals["exchanges"], "exchange")
    return f"{size(totals['bytes_across_groups'])} across groups in {exchanges}{saved}"


def size(nbytes: float) -> str:
    """Return a number of bytes as text.

    >>> size(1_840_000_000), size(999)
    ('1.84 GB', '999 B')
    """
    units = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3))
    name, unit = next(((name, unit) for name, unit in units if nbytes >= unit), ("B", 1.0))
    return f"{rounded(nbytes / unit)} {name}"


def _last(curve: Curve) -> float:
    return curve[-1][1] if curve else 0.0
