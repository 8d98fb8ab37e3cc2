"""When is a chunk's round complete: pure state machines over the groups that take part.

A group is named by its index. All groups that are expected take part from the beginning, whether they
have come yet or not, so that a round waits for them.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from hybridps.errors import ProtocolError


class Arrival(NamedTuple):
    """What an arrival is to its round."""

    first: bool
    complete: bool


class Clock(Protocol):
    """The rounds of the chunks of one table."""

    @property
    def members(self) -> frozenset[int]:
        """The groups that take part now."""

    def arrive(self, group: int, chunk: int) -> Arrival:
        """A value of `group` for `chunk` came. Raises ProtocolError if it may not come now."""

    def join(self, group: int) -> None:
        """`group` takes part as soon as no round is under way. Nothing changes if it does already."""

    def leave(self, group: int) -> tuple[int, ...]:
        """`group` takes part no longer; returns the chunks whose rounds that completes, ascending."""


class BulkSynchronous:
    """A round is complete when every member has come.

    What a group brought before it left stays in the round. A group that joins later waits until no round
    is under way: so it enters no round that has its earlier value, nor the second half of a step.
    """

    def __init__(self, groups: int) -> None:
        self._members = set(range(groups))
        self._joining: set[int] = set()
        self._arrived: dict[int, set[int]] = {}

    @property
    def members(self) -> frozenset[int]:
        return frozenset(self._members)

    def arrive(self, group: int, chunk: int) -> Arrival:
        _check_member(group, self._members)
        first = chunk not in self._arrived
        if not first and group in self._arrived[chunk]:
            raise ProtocolError(
                f"group {group} pushes chunk {chunk} twice in one round: wait for the answer of the round "
                f"before the next push (still to come: {_listed(self._members - self._arrived[chunk])})"
            )
        self._arrived.setdefault(chunk, set()).add(group)
        return Arrival(first, complete=bool(self._completed([chunk])))

    def join(self, group: int) -> None:
        if group not in self._members:
            self._joining.add(group)
            self._admit()

    def leave(self, group: int) -> tuple[int, ...]:
        self._members.discard(group)
        self._joining.discard(group)
        if self._members:
            return self._completed(sorted(self._arrived))
        # Nobody is left to be answered: the rounds under way are void.
        self._arrived.clear()
        self._admit()
        return ()

    def _completed(self, chunks: list[int]) -> tuple[int, ...]:
        """Those of `chunks` whose round is complete; the rounds end."""
        complete = tuple(chunk for chunk in chunks if self._members <= self._arrived[chunk])
        for chunk in complete:
            del self._arrived[chunk]
        self._admit()
        return complete

    def _admit(self) -> None:
        if not self._arrived:
            self._members |= self._joining
            self._joining.clear()


class FreeRunning:
    """Every arrival is a round of its own."""

    def __init__(self, groups: int) -> None:
        self._members = set(range(groups))

    @property
    def members(self) -> frozenset[int]:
        return frozenset(self._members)

    def arrive(self, group: int, chunk: int) -> Arrival:
        _check_member(group, self._members)
        return Arrival(first=True, complete=True)

    def join(self, group: int) -> None:
        self._members.add(group)

    def leave(self, group: int) -> tuple[int, ...]:
        self._members.discard(group)
        return ()


def _check_member(group: int, members: set[int]) -> None:
    if group not in members:
        raise ProtocolError(f"group {group} takes no part in the table: its groups are {_listed(members)}")


def _listed(groups: set[int]) -> str:
    return ", ".join(str(group) for group in sorted(groups)) or "none"
