"""What rounds have in common: the parts that make them, and what an arrival means."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from hybridps.errors import ProtocolError


class Part(NamedTuple):
    """What a group contributes to a chunk: elements `start:stop`. Of an element it has one under way at a time."""

    group: int
    start: int
    stop: int

    def without(self, done: Iterable[tuple[int, int]]) -> list[Part]:
        """What is left of it without these elements, each from and to."""
        left, place = [], self.start
        for start, stop in [*sorted(done), (self.stop, self.stop)]:
            if place < start:
                left.append(Part(self.group, place, min(start, self.stop)))
            place = max(place, stop)
        return left


class Verdict(NamedTuple):
    """What an arrival, or a departure, means for elements `start:stop` of a chunk."""

    start: int
    stop: int
    apply: tuple[Part, ...] = ()
    """The parts whose values make a round of these elements, which is computed now; by group, ascending."""
    answer: tuple[Part, ...] = ()
    """The parts that are answered after that: all of their elements are done."""


class Rounds(ABC):
    """Rounds of the chunks of one table. Whoever computes them counts what each group `brought`, and the `computed`."""

    def __init__(self, groups: Iterable[int]) -> None:
        self.members = {*groups}
        """The groups that take part now."""
        self.brought = dict.fromkeys(self.members, 0)
        """Elements of each group. One that joins begins where the slowest one is."""
        self.computed = 0
        """Elements of all rounds."""
        self.held = False
        """Whether groups that join wait though nothing is under way: others may be in the middle of a step."""

    @property
    def lag(self) -> tuple[int | None, int]:
        """The slowest group, the lowest of several, and how many elements it is behind the furthest one."""
        slowest = min(self.brought, key=lambda group: (self.brought[group], group), default=None)
        return slowest, 0 if slowest is None else max(self.brought.values()) - self.brought[slowest]

    @property
    def joining(self) -> set[int]:
        """The groups that wait to take part."""
        return set()

    def restore(self, members: set[int], joining: set[int]) -> None:
        """Begin with these groups. Nothing is under way, and all have brought as much."""
        self.members = members
        self.brought = dict.fromkeys(members | joining, 0)

    def restore_values(self, chunk: int, values: Iterable[tuple[Part, int]]) -> None:  # noqa: B027
        """Know how many values groups had brought of a chunk: with each part as many as `values_of` had said."""

    def values_of(self, part: Part, chunk: int) -> int:
        """How many values the group has brought of that part of a chunk, at least, if that is counted; else 0."""
        return 0

    @abstractmethod
    def arrive(self, part: Part, chunk: int, done: Iterable[tuple[int, int]] = ()) -> list[Verdict]:
        """A part of `chunk` came. Raises ProtocolError, and changes nothing, if it may not come now.

        `done`: elements of it, from and to, that were computed before these rounds were restored. They are in no round
        again, and are answered with the others.
        """

    def join(self, group: int) -> None:
        """`group` takes part as soon as it can. Nothing changes if it does already."""
        self.brought.setdefault(group, min(self.brought.values(), default=0))

    def let_in(self) -> None:
        """Groups that join are held no longer."""
        self.held = False

    def leave(self, group: int) -> list[tuple[int, Verdict]]:
        """`group` takes part no longer; what that means for chunks, ascending."""
        self.brought.pop(group, None)
        self.members.discard(group)
        return []

    def _check(self, part: Part) -> None:
        if part.group not in self.members:
            groups = _listed(self.members)
            raise ProtocolError(f"group {part.group} takes no part in the table: its groups are {groups}")


Cell = tuple[int, int, dict[int, Any]]
"""Elements `start:stop` of a chunk, and what is known there of each group: its part that is under way, or a count."""


def answers_of(parts: Iterable[Part]) -> list[Verdict]:
    """Parts that are answered though nothing is computed. Those of the same elements are answered together."""
    ordered = sorted(parts, key=lambda part: (part[1:], part.group))
    spans = groupby(ordered, key=lambda part: part[1:])
    return [Verdict(start, stop, answer=tuple(same)) for (start, stop), same in spans]


def change_cells(cells: Sequence[Cell], part: Part, change: Callable[[dict[int, Any]], dict[int, Any]]) -> list[Cell]:
    """The cells of a chunk after a part has come, which changes what is known of its elements."""
    cut: list[Cell] = []
    place = part.start
    for start, stop, known in cells:
        if place < start and place < part.stop:
            cut.append((place, min(start, part.stop), change({})))
        if start < part.start:
            cut.append((start, min(stop, part.start), known))
        if part.start < stop and start < part.stop:
            cut.append((max(start, part.start), min(stop, part.stop), change(known)))
        if part.stop < stop:
            cut.append((max(start, part.stop), stop, known))
        place = max(place, stop)
    return [*cut, (place, part.stop, change({}))] if place < part.stop else cut


def round_error(group: int, chunk: int, missing: set[int]) -> ProtocolError:
    """The error of a group that contributes twice to a round."""
    return ProtocolError(
        f"group {group} contributes to chunk {chunk} twice in one round: wait for the answer of the round "
        f"before the next contribution (still to come: {_listed(missing)})"
    )


def _listed(groups: set[int]) -> str:
    return ", ".join(str(group) for group in sorted(groups)) or "none"
