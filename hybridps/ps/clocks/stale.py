"""Rounds of one contribution, answered when no member is too far behind."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from hybridps.errors import ProtocolError
from hybridps.ps.clocks.rounds import Cell, Part, Rounds, Verdict, answers_of, change_cells, round_error

MOST_CELLS = 1 << 11
"""The number of ranges of a chunk that a bounded-stale clock counts separately. A chunk has at most so many keys of a
network."""


class StaleRounds(Rounds):
    def __init__(self, groups: Iterable[int], bound: int) -> None:
        super().__init__(groups)
        self._bound = bound
        self._counts: dict[int, list[Cell]] = {}
        """For each chunk, how many contributions each member has made to its elements."""
        self._waiting: dict[int, list[Part]] = {}

    def restore_values(self, chunk: int, values: Iterable[tuple[Part, int]]) -> None:
        cells: list[Cell] = []
        for part, number in values:
            if part.group in self.members:
                cells = change_cells(cells, part, partial(_at_least, group=part.group, number=number))
        for _, _, counts in cells:
            slowest = min(counts.values())
            if max(counts.values()) > self._bound + 1:  # a group that has brought none has joined later
                counts |= dict.fromkeys(self.members - counts.keys(), slowest)
        self._counts[chunk], self._waiting[chunk] = cells, []

    def values_of(self, part: Part, chunk: int) -> int:
        cells = self._counts.get(chunk, ())
        return min(counts[part.group] for start, stop, counts in cells if start < part.stop and part.start < stop)

    def arrive(self, part: Part, chunk: int, done: Iterable[tuple[int, int]] = ()) -> list[Verdict]:
        self._check(part)
        cells, waiting = self._counts.get(chunk, []), self._waiting.get(chunk, [])
        if any(known.group == part.group and _overlap(known, part) for known in waiting):
            counts = next(counts for start, stop, counts in cells if start < part.stop and part.start < stop)
            slowest = self._slowest(counts)
            raise round_error(
                part.group, chunk, {member for member in self.members if counts.get(member, 0) == slowest}
            )
        more = 0 if done else 1
        changed = change_cells(cells, part, lambda counts: counts | {part.group: counts.get(part.group, 0) + more})
        cells = []
        for start, stop, counts in changed:
            if cells and cells[-1][1] == start and cells[-1][2] == counts:
                start = cells.pop()[0]
            cells.append((start, stop, counts))
        if len(cells) > MOST_CELLS:
            raise ProtocolError(f"group {part.group} cuts chunk {chunk} into more than {MOST_CELLS} parts")
        self._counts[chunk] = cells
        self._waiting[chunk] = [*waiting, part]
        released = self._released(chunk)
        if done:
            return answers_of(released)
        together = tuple(each for each in released if each[1:] == part[1:])
        others = [each for each in released if each not in together]
        return [Verdict(part.start, part.stop, (part,), together), *answers_of(others)]

    def join(self, group: int) -> None:
        super().join(group)
        if group not in self.members:
            for cells in self._counts.values():
                for _, _, counts in cells:
                    counts[group] = self._slowest(counts)
            self.members.add(group)

    def leave(self, group: int, ends: bool = False) -> list[tuple[int, Verdict]]:
        super().leave(group)
        for chunk, cells in self._counts.items():
            for _, _, counts in cells:
                counts.pop(group, None)
            self._waiting[chunk] = [part for part in self._waiting[chunk] if part.group != group]
        released = [(chunk, self._released(chunk)) for chunk in sorted(self._counts)]
        return [(chunk, verdict) for chunk, parts in released for verdict in answers_of(parts)]

    def _slowest(self, counts: dict[int, int]) -> int:
        """Return the number of contributions of the member that has made the fewest."""
        return min(counts.values(), default=0) if self.members <= counts.keys() else 0

    def _released(self, chunk: int) -> list[Part]:
        """Return the parts that are answered now, in ascending order."""
        late = [
            (start, stop, self._slowest(counts) + self._bound, counts)
            for start, stop, counts in self._counts[chunk]
            if max(counts.values(), default=0) > self._slowest(counts) + self._bound
        ]
        """Elements to which some member has made too many contributions."""
        held = [
            part
            for part in self._waiting[chunk]
            if any(
                start < part.stop and part.start < stop and counts[part.group] > most
                for start, stop, most, counts in late
            )
        ]
        released = sorted({*self._waiting[chunk]}.difference(held))
        self._waiting[chunk] = held
        return released


def _at_least(counts: dict[int, int], group: int, number: int) -> dict[int, int]:
    return counts | {group: max(number, counts.get(group, 0))}


def _overlap(some: Part, other: Part) -> bool:
    return some.start < other.stop and other.start < some.stop
