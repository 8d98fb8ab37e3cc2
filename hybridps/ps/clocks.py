"""When is a round complete, and who is answered when: pure state machines over the contributions of groups.

A group is named by its index. All groups that are expected take part from the beginning, whether they have come yet
or not, so that others wait for them. A clock is a record, part of what the groups agree on; `start` makes its rounds.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from hybridps.errors import ProtocolError


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

    @property
    def lag(self) -> tuple[int | None, int]:
        """The slowest group, the lowest of several, and how many elements it is behind the furthest one."""
        slowest = min(self.brought, key=lambda group: (self.brought[group], group), default=None)
        return slowest, 0 if slowest is None else max(self.brought.values()) - self.brought[slowest]

    @abstractmethod
    def arrive(self, part: Part, chunk: int) -> list[Verdict]:
        """A part of `chunk` came. Raises ProtocolError, and changes nothing, if it may not come now."""

    def join(self, group: int) -> None:
        """`group` takes part as soon as it can. Nothing changes if it does already."""
        self.brought.setdefault(group, min(self.brought.values(), default=0))

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

    A group that joins begins where the slowest member is; if one leaves, the others no longer wait for it. Values are
    of whole chunks. (Stale synchronous parallel: Ho et al., 2013.)
    """

    bound: Annotated[int, Meta(ge=0, le=1 << 30)] = 0

    def start(self, groups: Iterable[int]) -> Rounds:
        return _StaleRounds(groups, self.bound)


class FreeRunning(msgspec.Struct, frozen=True, tag="free-running", forbid_unknown_fields=True):
    """Every value is a round of its own, and answered at once."""

    def start(self, groups: Iterable[int]) -> Rounds:
        return _StaleRounds(groups, math.inf)


Clock = BulkSynchronous | BoundedStale | FreeRunning

_Cell = tuple[int, int, dict[int, Part]]
"""Elements `start:stop` of a chunk, and the parts by group that are under way there."""


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
        return self._complete(chunk, _with(part, cells))

    def join(self, group: int) -> None:
        super().join(group)
        if group not in self.members:
            self._joining.add(group)
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
        if not self._open:
            self.members |= self._joining
            self._joining.clear()


class _StaleRounds(Rounds):
    def __init__(self, groups: Iterable[int], bound: float) -> None:
        super().__init__(groups)
        self._bound = bound
        self._values: dict[int, dict[int, int]] = {}
        """Of each chunk, how many values each member brought."""
        self._waiting: dict[int, dict[int, Part]] = {}

    def arrive(self, part: Part, chunk: int) -> list[Verdict]:
        self._check(part)
        if self._bound == math.inf:
            return [Verdict(part.start, part.stop, (part,), (part,))]
        if chunk not in self._values:
            self._values[chunk], self._waiting[chunk] = dict.fromkeys(self.members, 0), {}
        values, waiting = self._values[chunk], self._waiting[chunk]
        if part.group in waiting:
            slowest = min(values.values())
            raise _twice(part.group, chunk, {member for member, count in values.items() if count == slowest})
        values[part.group] += 1
        waiting[part.group] = part
        return [Verdict(part.start, part.stop, (part,), self._released(chunk))]

    def join(self, group: int) -> None:
        super().join(group)
        if group not in self.members:
            self.members.add(group)
            for values in self._values.values():
                values[group] = min(values.values(), default=0)

    def leave(self, group: int) -> list[tuple[int, Verdict]]:
        super().leave(group)
        for chunk, values in self._values.items():
            values.pop(group, None)
            self._waiting[chunk].pop(group, None)
        released = [(chunk, self._released(chunk)) for chunk in sorted(self._values)]
        return [(chunk, Verdict(0, 0, answer=parts)) for chunk, parts in released if parts]

    def _released(self, chunk: int) -> tuple[Part, ...]:
        values, waiting = self._values[chunk], self._waiting[chunk]
        furthest = min(values.values(), default=0) + self._bound
        released = sorted(group for group in waiting if values[group] <= furthest)
        return tuple(waiting.pop(group) for group in released)


def _with(part: Part, cells: Sequence[_Cell]) -> list[_Cell]:
    """The cells of a chunk after a part has come."""
    cut: list[_Cell] = []
    place, mine = part.start, {part.group: part}
    for start, stop, parts in cells:
        if place < start and place < part.stop:
            cut.append((place, min(start, part.stop), mine))
        if start < part.start:
            cut.append((start, min(stop, part.start), parts))
        if part.start < stop and start < part.stop:
            cut.append((max(start, part.start), min(stop, part.stop), parts | mine))
        if part.stop < stop:
            cut.append((max(start, part.stop), stop, parts))
        place = max(place, stop)
    return [*cut, (place, part.stop, mine)] if place < part.stop else cut


def _twice(group: int, chunk: int, missing: set[int]) -> ProtocolError:
    return ProtocolError(
        f"group {group} contributes to chunk {chunk} twice in one round: wait for the answer of the round "
        f"before the next contribution (still to come: {_listed(missing)})"
    )


def _listed(groups: set[int]) -> str:
    return ", ".join(str(group) for group in sorted(groups)) or "none"
