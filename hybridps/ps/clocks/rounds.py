"""What all kinds of rounds have in common: the parts that form them, and what an arrival means."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from hybridps.errors import ProtocolError


class Part(NamedTuple):
    """A group's contribution to elements `start:stop` of a chunk. An element is in one part of a group at a time."""

    group: int
    start: int
    stop: int

    def without(self, done: Iterable[tuple[int, int]]) -> list[Part]:
        """Return what is left of the part without the spans `done`."""
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
    """The parts whose values form a round of these elements, which is computed now; in ascending order of groups."""
    answer: tuple[Part, ...] = ()
    """The parts that are answered after that, because all of their elements are done."""


class Rounds(ABC):
    """The rounds of the chunks of one table. Whoever computes rounds updates `brought` and `computed`."""

    def __init__(self, groups: Iterable[int]) -> None:
        self.members = {*groups}
        """The groups that take part now."""
        self.brought = dict.fromkeys(self.members, 0)
        """The number of elements that each group has brought. A group that joins begins with that of the slowest
        one."""
        self.computed = 0
        """The number of elements of all computed rounds."""
        self.equally = False
        """Whether all groups must do the same number of rounds."""
        self.ended: set[int] = set()
        """In that case, the groups that have come to the end of their training."""
        self.late: set[int] = set()
        """Groups that joined when rounds had been computed, such as restarted ones. They may have more rounds left."""
        self.held = False
        """Whether groups that join must wait even if nothing is under way, because others may be in the middle of a
        step."""

    @property
    def lag(self) -> tuple[int | None, int]:
        """The slowest group (the lowest of several), and how many elements it is behind the fastest one."""
        slowest = min(self.brought, key=lambda group: (self.brought[group], group), default=None)
        return slowest, 0 if slowest is None else max(self.brought.values()) - self.brought[slowest]

    @property
    def joining(self) -> set[int]:
        """The groups that wait to take part."""
        return set()

    def restore(self, members: set[int], joining: set[int]) -> None:
        """Begin with these groups. Nothing is under way, and all have brought the same number of elements."""
        self.members = members
        self.brought = dict.fromkeys(members | joining, 0)

    def restore_values(self, chunk: int, values: Iterable[tuple[Part, int]]) -> None:  # noqa: B027
        """Restore how many contributions groups had made to a chunk: for each part, the result of `values_of`."""

    def values_of(self, part: Part, chunk: int) -> int:
        """Return a lower bound of a group's contributions to this part of a chunk, if they are counted; otherwise 0."""
        return 0

    @abstractmethod
    def arrive(self, part: Part, chunk: int, done: Iterable[tuple[int, int]] = ()) -> list[Verdict]:
        """Take in a part of `chunk`. Raises ProtocolError, and changes nothing, if it is not allowed now.

        `done`: spans of the part that were computed before these rounds were restored. They enter no further round, and
        are answered with the rest.
        """

    def join(self, group: int) -> None:
        """Let a group take part as soon as it can. Does nothing if it takes part already."""
        self.brought.setdefault(group, min(self.brought.values(), default=0))

    def let_in(self) -> None:
        """Stop holding back the groups that join."""
        self.held = False

    def leave(self, group: int, ends: bool = False) -> list[tuple[int, Verdict]]:
        """Let a group take part no longer. Returns the verdicts that follow, with their chunks in ascending order.

        `ends`: it has come to the end of its training.
        """
        if ends and self.equally:
            self.ended.add(group)
        self.brought.pop(group, None)
        self.members.discard(group)
        return []

    def _check(self, part: Part) -> None:
        if part.group not in self.members:
            groups = _listed(self.members)
            raise ProtocolError(f"group {part.group} takes no part in the table: its groups are {groups}")


Cell = tuple[int, int, dict[int, Any]]
"""Elements `start:stop` of a chunk, and what is known about each group there: its part under way, or a count."""


def answers_of(parts: Iterable[Part]) -> list[Verdict]:
    """Return verdicts for parts that are answered although nothing is computed; one for all with the same elements."""
    ordered = sorted(parts, key=lambda part: (part[1:], part.group))
    spans = groupby(ordered, key=lambda part: part[1:])
    return [Verdict(start, stop, answer=tuple(same)) for (start, stop), same in spans]


def change_cells(cells: Sequence[Cell], part: Part, change: Callable[[dict[int, Any]], dict[int, Any]]) -> list[Cell]:
    """Return the cells of a chunk after a part has arrived. `change` updates what is known of the part's elements."""
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
    """Return the error for a group that contributes twice to a round."""
    return ProtocolError(
        f"group {group} contributes to chunk {chunk} twice in one round: wait for the answer of the round "
        f"before the next contribution (still to come: {_listed(missing)})"
    )


def _listed(groups: set[int]) -> str:
    return ", ".join(str(group) for group in sorted(groups)) or "none"
