"""How far each group of a table is, counted at the clock. Pure."""

from __future__ import annotations

from typing import NamedTuple

from hybridps.ps.clocks import Rounds, Verdict


class Lag(NamedTuple):
    """The slowest group, and how many values it is behind the furthest one; no group and 0 if none takes part."""

    group: int | None
    values: float


class Progress:
    """The rounds of a table of so many `chunks`, counted: what each group brought, and what was computed.

    A value is one of every chunk; a part of the chunks is a part of a value. A group that joins begins where the
    slowest one is.
    """

    def __init__(self, rounds: Rounds, chunks: int) -> None:
        self._rounds = rounds
        self._chunks = max(chunks, 1)
        self._brought = dict.fromkeys(rounds.members, 0)
        self._computed = 0

    @property
    def members(self) -> frozenset[int]:
        """As `Rounds.members`."""
        return self._rounds.members

    @property
    def completed(self) -> float:
        """Rounds that were computed."""
        return self._computed / self._chunks

    @property
    def lag(self) -> Lag:
        """Of the group that is furthest behind, the lowest of several."""
        if not self._brought:
            return Lag(None, 0.0)
        slowest = min(self._brought, key=lambda group: (self._brought[group], group))
        return Lag(slowest, (max(self._brought.values()) - self._brought[slowest]) / self._chunks)

    def arrive(self, group: int, chunk: int) -> Verdict:
        """As `Rounds.arrive`."""
        verdict = self._rounds.arrive(group, chunk)
        self._brought[group] += 1
        self._computed += bool(verdict.apply)
        return verdict

    def join(self, group: int) -> None:
        """As `Rounds.join`."""
        self._rounds.join(group)
        self._brought.setdefault(group, min(self._brought.values(), default=0))

    def leave(self, group: int) -> tuple[tuple[int, Verdict], ...]:
        """As `Rounds.leave`."""
        self._brought.pop(group, None)
        verdicts = self._rounds.leave(group)
        self._computed += sum(bool(verdict.apply) for _, verdict in verdicts)
        return verdicts
