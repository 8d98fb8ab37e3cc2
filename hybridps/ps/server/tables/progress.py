"""How far each group of a table is, counted at the clock. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from hybridps.ps.clocks import Part, Rounds, Verdict


class Lag(NamedTuple):
    """The slowest group, and how many values it is behind the furthest one; no group and 0 if none takes part."""

    group: int | None
    values: float


class Progress:
    """The rounds of a table that has so many `elements` here, counted: what each group brought, and what was computed.

    A value is one of every element; a part of the elements is a part of a value. A group that joins begins where the
    slowest one is.
    """

    def __init__(self, rounds: Rounds, elements: int) -> None:
        self._rounds = rounds
        self._elements = max(elements, 1)
        self._brought = dict.fromkeys(rounds.members, 0)
        self._computed = 0

    @property
    def members(self) -> frozenset[int]:
        """As `Rounds.members`."""
        return self._rounds.members

    @property
    def completed(self) -> float:
        """Rounds that were computed."""
        return self._computed / self._elements

    @property
    def lag(self) -> Lag:
        """Of the group that is furthest behind, the lowest of several."""
        if not self._brought:
            return Lag(None, 0.0)
        slowest = min(self._brought, key=lambda group: (self._brought[group], group))
        return Lag(slowest, (max(self._brought.values()) - self._brought[slowest]) / self._elements)

    def arrive(self, part: Part, chunk: int) -> list[Verdict]:
        """As `Rounds.arrive`."""
        verdicts = self._rounds.arrive(part, chunk)
        self._brought[part.group] += part.stop - part.start
        self._count(verdicts)
        return verdicts

    def join(self, group: int) -> None:
        """As `Rounds.join`."""
        self._rounds.join(group)
        self._brought.setdefault(group, min(self._brought.values(), default=0))

    def leave(self, group: int) -> list[tuple[int, Verdict]]:
        """As `Rounds.leave`."""
        self._brought.pop(group, None)
        verdicts = self._rounds.leave(group)
        self._count(verdict for _, verdict in verdicts)
        return verdicts

    def _count(self, verdicts: Iterable[Verdict]) -> None:
        self._computed += sum(verdict.stop - verdict.start for verdict in verdicts if verdict.apply)
