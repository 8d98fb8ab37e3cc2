"""When is a round complete, and who is answered when: pure state machines over the contributions of groups.

A group is named by its index. All groups that are expected take part from the beginning, whether they have come yet
or not, so that others wait for them. A clock is a record, part of what the groups agree on; `start` makes its rounds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, NamedTuple, Protocol

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


class Rounds(Protocol):
    """The rounds of the chunks of one table."""

    @property
    def members(self) -> frozenset[int]:
        """The groups that take part now."""

    def arrive(self, part: Part, chunk: int) -> list[Verdict]:
        """A part of `chunk` came. Raises ProtocolError, and changes nothing, if it may not come now."""

    def join(self, group: int) -> None:
        """`group` takes part as soon as it can. Nothing changes if it does already."""

    def leave(self, group: int) -> list[tuple[int, Verdict]]:
        """`group` takes part no longer; what that means for chunks, ascending."""


class BulkSynchronous(msgspec.Struct, frozen=True, tag="bulk-synchronous", forbid_unknown_fields=True):
    """A round has one value of every member, element by element: members may cut a chunk into different parts.

    What a group brought before it left stays in the round. A group that joins later waits until no round
    is under way: so it enters no round that has its earlier value, nor the second half of a step.
    """

    def start(self, groups: int) -> Rounds:
        return _BulkSynchronousRounds(groups)


class BoundedStale(msgspec.Struct, frozen=True, tag="bounded-stale", forbid_unknown_fields=True):
    """Every value is a round of its own. A group is answered when no member is more than `bound` values behind it.

    A group that joins begins where the slowest member is; if one leaves, the others no longer wait for it. Values are
    of whole chunks. (Stale synchronous parallel: Ho et al., 2013.)
    """

    bound: Annotated[int, Meta(ge=0, le=1 << 30)] = 0

    def start(self, groups: int) -> Rounds:
        return _BoundedStaleRounds(groups, self.bound)


class FreeRunning(msgspec.Struct, frozen=True, tag="free-running", forbid_unknown_fields=True):
    """Every value is a round of its own, and answered at once."""

    def start(self, groups: int) -> Rounds:
        return _FreeRunningRounds(groups)


Clock = BulkSynchronous | BoundedStale | FreeRunning


class _Open:
    """A part, and those of its elements that are in no round yet, as runs in order."""

    def __init__(self, part: Part) -> None:
        self.part = part
        self.left = [(part.start, part.stop)]

    def covers(self, start: int, stop: int) -> bool:
        return any(begin <= start and stop <= end for begin, end in self.left)

    def take(self, start: int, stop: int) -> None:
        """These elements, which it covers, are in a round."""
        runs = []
        for begin, end in self.left:
            outside = [(begin, min(end, start)), (max(begin, stop), end)]
            runs += [run for run in outside if run[0] < run[1]]
        self.left = runs


class _BulkSynchronousRounds:
    def __init__(self, groups: int) -> None:
        self._members = set(range(groups))
        self._joining: set[int] = set()
        self._open: dict[int, dict[int, list[_Open]]] = {}
        """Of each chunk and group, the parts that are not wholly in a round."""

    @property
    def members(self) -> frozenset[int]:
        return frozenset(self._members)

    def arrive(self, part: Part, chunk: int) -> list[Verdict]:
        _check_member(part.group, self._members)
        of_chunk = self._open.setdefault(chunk, {})
        if self._all_alike(of_chunk, part):
            del self._open[chunk]
            self._admit()
            apply = tuple(sorted([part, *(known.part for parts in of_chunk.values() for known in parts)]))
            return [Verdict(part.start, part.stop, apply, apply)]
        mine = of_chunk.setdefault(part.group, [])
        if any(known.part.start < part.stop and part.start < known.part.stop for known in mine):
            missing = {group for group in self._members if not of_chunk.get(group)}
            raise _twice(part.group, chunk, missing)
        mine.append(_Open(part))
        verdicts = self._complete(of_chunk, part.start, part.stop)
        self._close(chunk)
        return verdicts

    def _all_alike(self, of_chunk: dict[int, list[_Open]], part: Part) -> bool:
        """Whether every other member has brought just what this part is, and nobody anything else: the usual case."""
        if len(of_chunk) + 1 != len(self._members) or part.group in of_chunk or not of_chunk.keys() <= self._members:
            return False
        whole = [(part.start, part.stop)]
        return all(len(parts) == 1 and parts[0].left == whole for parts in of_chunk.values())

    def join(self, group: int) -> None:
        if group not in self._members:
            self._joining.add(group)
            self._admit()

    def leave(self, group: int) -> list[tuple[int, Verdict]]:
        self._members.discard(group)
        self._joining.discard(group)
        if not self._members:
            self._open.clear()  # nobody is left to be answered: the rounds under way are void
        verdicts = []
        for chunk, of_chunk in sorted(self._open.items()):
            borders = [edge for parts in of_chunk.values() for known in parts for run in known.left for edge in run]
            if borders:
                verdicts += [(chunk, verdict) for verdict in self._complete(of_chunk, min(borders), max(borders))]
            self._close(chunk)
        self._admit()
        return verdicts

    def _complete(self, of_chunk: dict[int, list[_Open]], start: int, stop: int) -> list[Verdict]:
        """The rounds of elements `start:stop` that are complete now."""
        if not all(of_chunk.get(group) for group in self._members):
            return []
        verdicts = []
        for begin, end in _cut(of_chunk, start, stop):
            found = [known for parts in of_chunk.values() for known in parts if known.covers(begin, end)]
            if self._members <= {known.part.group for known in found}:
                for known in found:
                    known.take(begin, end)
                apply = tuple(sorted(known.part for known in found))
                verdicts.append(Verdict(begin, end, apply, tuple(sorted(k.part for k in found if not k.left))))
        for group, parts in of_chunk.items():
            of_chunk[group] = [known for known in parts if known.left]
        return verdicts

    def _close(self, chunk: int) -> None:
        """Forget a chunk that has no round under way; groups that wait for that may join."""
        if not any(self._open.get(chunk, {}).values()):
            self._open.pop(chunk, None)
            self._admit()

    def _admit(self) -> None:
        if not self._open:
            self._members |= self._joining
            self._joining.clear()


class _BoundedStaleRounds:
    def __init__(self, groups: int, bound: int) -> None:
        self._bound = bound
        self._members = set(range(groups))
        self._values: dict[int, dict[int, int]] = {}
        self._waiting: dict[int, dict[int, Part]] = {}

    @property
    def members(self) -> frozenset[int]:
        return frozenset(self._members)

    def arrive(self, part: Part, chunk: int) -> list[Verdict]:
        _check_member(part.group, self._members)
        values = self._values.setdefault(chunk, dict.fromkeys(self._members, 0))
        waiting = self._waiting.setdefault(chunk, {})
        if part.group in waiting:
            slowest = min(values.values())
            raise _twice(part.group, chunk, {member for member, count in values.items() if count == slowest})
        values[part.group] += 1
        waiting[part.group] = part
        return [Verdict(part.start, part.stop, (part,), self._released(chunk))]

    def join(self, group: int) -> None:
        if group in self._members:
            return
        self._members.add(group)
        for values in self._values.values():
            values[group] = min(values.values(), default=0)

    def leave(self, group: int) -> list[tuple[int, Verdict]]:
        self._members.discard(group)
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


class _FreeRunningRounds:
    def __init__(self, groups: int) -> None:
        self._members = set(range(groups))

    @property
    def members(self) -> frozenset[int]:
        return frozenset(self._members)

    def arrive(self, part: Part, chunk: int) -> list[Verdict]:
        _check_member(part.group, self._members)
        return [Verdict(part.start, part.stop, (part,), (part,))]

    def join(self, group: int) -> None:
        self._members.add(group)

    def leave(self, group: int) -> list[tuple[int, Verdict]]:
        self._members.discard(group)
        return []


def _cut(of_chunk: dict[int, list[_Open]], start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Elements `start:stop`, cut where any part begins or ends."""
    edges = {start, stop}
    for parts in of_chunk.values():
        for known in parts:
            edges |= {edge for run in known.left for edge in run if start < edge < stop}
    ordered = sorted(edges)
    return zip(ordered, ordered[1:], strict=False)


def _twice(group: int, chunk: int, missing: set[int]) -> ProtocolError:
    return ProtocolError(
        f"group {group} contributes to chunk {chunk} twice in one round: wait for the answer of the round "
        f"before the next contribution (still to come: {_listed(missing)})"
    )


def _check_member(group: int, members: set[int]) -> None:
    if group not in members:
        raise ProtocolError(f"group {group} takes no part in the table: its groups are {_listed(members)}")


def _listed(groups: set[int]) -> str:
    return ", ".join(str(group) for group in sorted(groups)) or "none"
