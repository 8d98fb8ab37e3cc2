"""When is a round complete, and who is answered when: pure state machines over the contributions of groups.

A group is named by its index. All groups that are expected take part from the beginning, whether they have come yet
or not, so that others wait for them. A clock is a record, part of what the groups agree on; `start` makes its rounds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from hybridps.errors import ProtocolError

MOST_CELLS = 1 << 11
"""Ranges of a chunk that a bounded-stale clock counts apart: it has at most so many keys of a network."""


class Part(NamedTuple):
    """What a group contributes to a chunk: elements `start:stop`. Of an element it has one under way at a time."""

    group: int
    start: int
    stop: int


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

    @abstractmethod
    def arrive(self, part: Part, chunk: int) -> list[Verdict]:
        """A part of `chunk` came. Raises ProtocolError, and changes nothing, if it may not come now."""

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


class BulkSynchronous(msgspec.Struct, frozen=True, tag="bulk-synchronous", forbid_unknown_fields=True):
    """A round has one value of every member, element by element: members may cut a chunk into different parts.

    What a group brought before it left stays in the round. A group that joins later waits until no round
    is under way: so it enters no round that has its earlier value, nor the second half of a step.
    """

    def start(self, groups: Iterable[int]) -> Rounds:
        return _BulkSynchronousRounds(groups)


class BoundedStale(msgspec.Struct, frozen=True, tag="bounded-stale", forbid_unknown_fields=True):
    """Every value is a round of its own. A group is answered when no member is more than `bound` values behind it.

    Values are counted for each element, so members may cut a chunk into different parts. A group that joins begins
    where the slowest member is; if one leaves, the others no longer wait for it. (Stale synchronous parallel: Ho et
    al., 2013.)
    """

    bound: Annotated[int, Meta(ge=0, le=1 << 30)] = 0

    def start(self, groups: Iterable[int]) -> Rounds:
        return _StaleRounds(groups, self.bound)


class FreeRunning(msgspec.Struct, frozen=True, tag="free-running", forbid_unknown_fields=True):
    """Every value is a round of its own, and answered at once."""

    def start(self, groups: Iterable[int]) -> Rounds:
        return _FreeRounds(groups)


Clock = BulkSynchronous | BoundedStale | FreeRunning

_Cell = tuple[int, int, dict[int, Any]]
"""Elements `start:stop` of a chunk, and what is known there of each group: its part that is under way, or a count."""


class _BulkSynchronousRounds(Rounds):
    def __init__(self, groups: Iterable[int]) -> None:
        super().__init__(groups)
        self._joining: set[int] = set()
        self._open: dict[int, list[_Cell]] = {}
        """Of each chunk with rounds under way their elements, ascending, cut where any part begins or ends."""

    def arrive(self, part: Part, chunk: int) -> list[Verdict]:
        self._check(part)
        cells = self._open.get(chunk, ())
        mine = {parts[part.group] for _, _, parts in cells if part.group in parts}
        if any(known.start < part.stop and part.start < known.stop for known in mine):
            raise _twice(part.group, chunk, self.members.difference(*(parts for _, _, parts in cells)))
        return self._complete(chunk, _changed(cells, part, lambda parts: parts | {part.group: part}))

    @property
    def joining(self) -> set[int]:
        return self._joining

    def restore(self, members: set[int], joining: set[int]) -> None:
        super().restore(members, joining)
        self._joining = joining

    def join(self, group: int) -> None:
        super().join(group)
        if group not in self.members:
            self._joining.add(group)
            self._admit()

    def let_in(self) -> None:
        super().let_in()
        self._admit()

    def leave(self, group: int) -> list[tuple[int, Verdict]]:
        super().leave(group)
        self._joining.discard(group)
        if not self.members:
            self._open.clear()  # nobody is left to be answered: the rounds under way are void
        open_now = sorted(self._open.items())
        verdicts = [(chunk, verdict) for chunk, cells in open_now for verdict in self._complete(chunk, cells)]
        self._admit()
        return verdicts

    def _complete(self, chunk: int, cells: list[_Cell]) -> list[Verdict]:
        """The rounds of a chunk that are complete now."""
        done: list[_Cell] = []
        left: list[_Cell] = []
        for cell in cells:
            (done if self.members <= cell[2].keys() else left).append(cell)
        if left:
            self._open[chunk] = left
        else:
            self._open.pop(chunk, None)
            self._admit()
        waiting = {part for _, _, parts in left for part in parts.values()} if done else set()
        verdicts = []
        for start, stop, parts in reversed(done):
            apply = tuple(sorted(parts.values()))
            answer = tuple(part for part in apply if part not in waiting) if waiting else apply
            verdicts.append(Verdict(start, stop, apply, answer))
            waiting.update(apply)
        return verdicts[::-1]

    def _admit(self) -> None:
        """Groups that wait until no round is under way take part now, if none is."""
        if not (self._open or self.held):
            self.members |= self._joining
            self._joining.clear()


class _FreeRounds(Rounds):
    def arrive(self, part: Part, chunk: int) -> list[Verdict]:
        self._check(part)
        return [Verdict(part.start, part.stop, (part,), (part,))]

    def join(self, group: int) -> None:
        super().join(group)
        self.members.add(group)


class _StaleRounds(Rounds):
    def __init__(self, groups: Iterable[int], bound: int) -> None:
        super().__init__(groups)
        self._bound = bound
        self._counts: dict[int, list[_Cell]] = {}
        """Of each chunk, how many values each member has brought of its elements, if any."""
        self._waiting: dict[int, list[Part]] = {}

    def arrive(self, part: Part, chunk: int) -> list[Verdict]:
        self._check(part)
        cells, waiting = self._counts.get(chunk, []), self._waiting.get(chunk, [])
        if any(known.group == part.group and _overlap(known, part) for known in waiting):
            counts = next(counts for start, stop, counts in cells if start < part.stop and part.start < stop)
            slowest = self._slowest(counts)
            raise _twice(part.group, chunk, {member for member in self.members if counts.get(member, 0) == slowest})
        changed = _changed(cells, part, lambda counts: counts | {part.group: counts.get(part.group, 0) + 1})
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
        together = tuple(each for each in released if each[1:] == part[1:])
        others = [each for each in released if each not in together]
        return [Verdict(part.start, part.stop, (part,), together), *_answers(others)]

    def join(self, group: int) -> None:
        super().join(group)
        if group not in self.members:
            for cells in self._counts.values():
                for _, _, counts in cells:
                    counts[group] = self._slowest(counts)
            self.members.add(group)

    def leave(self, group: int) -> list[tuple[int, Verdict]]:
        super().leave(group)
        for chunk, cells in self._counts.items():
            for _, _, counts in cells:
                counts.pop(group, None)
            self._waiting[chunk] = [part for part in self._waiting[chunk] if part.group != group]
        released = [(chunk, self._released(chunk)) for chunk in sorted(self._counts)]
        return [(chunk, verdict) for chunk, parts in released for verdict in _answers(parts)]

    def _slowest(self, counts: dict[int, int]) -> int:
        """The values of the member that has brought fewest."""
        return min(counts.values(), default=0) if self.members <= counts.keys() else 0

    def _released(self, chunk: int) -> list[Part]:
        """The parts that are answered now, ascending."""
        late = [
            (start, stop, self._slowest(counts) + self._bound, counts)
            for start, stop, counts in self._counts[chunk]
            if max(counts.values(), default=0) > self._slowest(counts) + self._bound
        ]
        """Elements of which some member has brought too many values."""
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


def _answers(parts: Iterable[Part]) -> list[Verdict]:
    """Parts that are answered though nothing is computed. Those of the same elements are answered together."""
    ordered = sorted(parts, key=lambda part: (part[1:], part.group))
    spans = groupby(ordered, key=lambda part: part[1:])
    return [Verdict(start, stop, answer=tuple(same)) for (start, stop), same in spans]


def _overlap(some: Part, other: Part) -> bool:
    return some.start < other.stop and other.start < some.stop


def _changed(cells: Sequence[_Cell], part: Part, change: Callable[[dict[int, Any]], dict[int, Any]]) -> list[_Cell]:
    """The cells of a chunk after a part has come, which changes what is known of its elements."""
    cut: list[_Cell] = []
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


def _twice(group: int, chunk: int, missing: set[int]) -> ProtocolError:
    return ProtocolError(
        f"group {group} contributes to chunk {chunk} twice in one round: wait for the answer of the round "
        f"before the next contribution (still to come: {_listed(missing)})"
    )


def _listed(groups: set[int]) -> str:
    return ", ".join(str(group) for group in sorted(groups)) or "none"
