"""When is a chunk's round complete, and who is answered when: pure state machines over the groups that take part.

A group is named by its index. All groups that are expected take part from the beginning, whether they have come yet
or not, so that others wait for them. A clock is a record, part of what the groups agree on; `start` makes its rounds.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple, Protocol

import msgspec
from msgspec import Meta

from hybridps.errors import ProtocolError


class Verdict(NamedTuple):
    """What an arrival, or a leave, means for a chunk."""

    apply: tuple[int, ...] = ()
    """The groups whose values make a round that is computed now, ascending."""

    answer: tuple[int, ...] = ()
    """The groups that are answered, after that."""


_NOTHING = Verdict()


class Rounds(Protocol):
    """The rounds of the chunks of one table."""

    @property
    def members(self) -> frozenset[int]:
        """The groups that take part now."""

    def arrive(self, group: int, chunk: int) -> Verdict:
        """A value of `group` for `chunk` came. Raises ProtocolError if it may not come now."""

    def join(self, group: int) -> None:
        """`group` takes part as soon as it can. Nothing changes if it does already."""

    def leave(self, group: int) -> tuple[tuple[int, Verdict], ...]:
        """`group` takes part no longer; what that means for chunks, ascending."""


class BulkSynchronous(msgspec.Struct, frozen=True, tag="bulk-synchronous", forbid_unknown_fields=True):
    """A round has one value of every member.

    What a group brought before it left stays in the round. A group that joins later waits until no round
    is under way: so it enters no round that has its earlier value, nor the second half of a step.
    """

    def start(self, groups: int) -> Rounds:
        return _BulkSynchronousRounds(groups)


class BoundedStale(msgspec.Struct, frozen=True, tag="bounded-stale", forbid_unknown_fields=True):
    """Every value is a round of its own. A group is answered when no member is more than `bound` values behind it.

    A group that joins begins where the slowest member is; if one leaves, the others wait for it no more.
    (Stale synchronous parallel: Ho et al., 2013.)
    """

    bound: Annotated[int, Meta(ge=0, le=1 << 30)] = 0

    def start(self, groups: int) -> Rounds:
        return _BoundedStaleRounds(groups, self.bound)


class FreeRunning(msgspec.Struct, frozen=True, tag="free-running", forbid_unknown_fields=True):
    """Every value is a round of its own, and answered at once."""

    def start(self, groups: int) -> Rounds:
        return _FreeRunningRounds(groups)


Clock = BulkSynchronous | BoundedStale | FreeRunning


class _BulkSynchronousRounds:
    def __init__(self, groups: int) -> None:
        self._members = set(range(groups))
        self._joining: set[int] = set()
        self._arrived: dict[int, set[int]] = {}

    @property
    def members(self) -> frozenset[int]:
        return frozenset(self._members)

    def arrive(self, group: int, chunk: int) -> Verdict:
        _check_member(group, self._members)
        arrived = self._arrived.setdefault(chunk, set())
        if group in arrived:
            raise _pushed_twice(group, chunk, self._members - arrived)
        arrived.add(group)
        if not self._members <= arrived:
            return _NOTHING
        verdict = self._complete(chunk)
        self._admit()
        return verdict

    def join(self, group: int) -> None:
        if group not in self._members:
            self._joining.add(group)
            self._admit()

    def leave(self, group: int) -> tuple[tuple[int, Verdict], ...]:
        self._members.discard(group)
        self._joining.discard(group)
        if not self._members:
            self._arrived.clear()  # nobody is left to be answered: the rounds under way are void
        complete = [chunk for chunk, arrived in sorted(self._arrived.items()) if self._members <= arrived]
        verdicts = tuple((chunk, self._complete(chunk)) for chunk in complete)
        self._admit()
        return verdicts

    def _complete(self, chunk: int) -> Verdict:
        """The round of a chunk ends."""
        arrived = tuple(sorted(self._arrived.pop(chunk)))
        return Verdict(arrived, arrived)

    def _admit(self) -> None:
        if not self._arrived:
            self._members |= self._joining
            self._joining.clear()


class _BoundedStaleRounds:
    def __init__(self, groups: int, bound: int) -> None:
        self._bound = bound
        self._members = set(range(groups))
        self._values: dict[int, dict[int, int]] = {}
        self._waiting: dict[int, set[int]] = {}

    @property
    def members(self) -> frozenset[int]:
        return frozenset(self._members)

    def arrive(self, group: int, chunk: int) -> Verdict:
        _check_member(group, self._members)
        values = self._values.setdefault(chunk, dict.fromkeys(self._members, 0))
        waiting = self._waiting.setdefault(chunk, set())
        if group in waiting:
            slowest = min(values.values())
            raise _pushed_twice(group, chunk, {member for member, count in values.items() if count == slowest})
        values[group] += 1
        waiting.add(group)
        return Verdict((group,), self._released(chunk))

    def join(self, group: int) -> None:
        if group in self._members:
            return
        self._members.add(group)
        for values in self._values.values():
            values[group] = min(values.values(), default=0)

    def leave(self, group: int) -> tuple[tuple[int, Verdict], ...]:
        self._members.discard(group)
        for chunk, values in self._values.items():
            values.pop(group, None)
            self._waiting[chunk].discard(group)
        released = [(chunk, self._released(chunk)) for chunk in sorted(self._values)]
        return tuple((chunk, Verdict(answer=groups)) for chunk, groups in released if groups)

    def _released(self, chunk: int) -> tuple[int, ...]:
        values, waiting = self._values[chunk], self._waiting[chunk]
        furthest = min(values.values(), default=0) + self._bound
        released = tuple(sorted(group for group in waiting if values[group] <= furthest))
        waiting.difference_update(released)
        return released


class _FreeRunningRounds:
    def __init__(self, groups: int) -> None:
        self._members = set(range(groups))

    @property
    def members(self) -> frozenset[int]:
        return frozenset(self._members)

    def arrive(self, group: int, chunk: int) -> Verdict:
        _check_member(group, self._members)
        return Verdict((group,), (group,))

    def join(self, group: int) -> None:
        self._members.add(group)

    def leave(self, group: int) -> tuple[tuple[int, Verdict], ...]:
        self._members.discard(group)
        return ()


def _pushed_twice(group: int, chunk: int, missing: set[int]) -> ProtocolError:
    return ProtocolError(
        f"group {group} pushes chunk {chunk} twice in one round: wait for the answer of the round "
        f"before the next push (still to come: {_listed(missing)})"
    )


def _check_member(group: int, members: set[int]) -> None:
    if group not in members:
        raise ProtocolError(f"group {group} takes no part in the table: its groups are {_listed(members)}")


def _listed(groups: set[int]) -> str:
    return ", ".join(str(group) for group in sorted(groups)) or "none"
