"""What a server does with a round that is complete: its role. A root computes the rule; a rack asks its parents."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import numpy as np

from hybridps.ps.model import Contribution, Outcome, Task
from hybridps.ps.server.tables.chunk_memory import SENT

if TYPE_CHECKING:
    from hybridps.ps.server.tables.rounds import Chunk


class Round(msgspec.Struct, frozen=True, eq=False):
    """Elements `start:stop` of a chunk whose round is complete.

    `contributions`: those that were not added up early. `outlets`: where the answer is written. The loop calls `finish`
    with the groups that were refused, or with the error that ended the round; it returns the answers.
    """

    chunk: Chunk
    start: int
    stop: int
    contributions: Sequence[Contribution]
    outlets: dict[int, list[np.ndarray]]
    finish: Callable[[Any], Iterable[Outcome]]

    @property
    def nbytes(self) -> int:
        """What is read and written for it, about."""
        arrays = sum(len(each.rows) for each in self.contributions) + sum(map(len, self.outlets.values()))
        return (1 + arrays) * (self.stop - self.start) * self.chunk.memory.centre.itemsize


class Role(Protocol):
    """What a server does with a round that is complete: a root computes the rule, a rack asks its parents."""

    def complete(self, complete: Round) -> Iterable[Outcome]: ...

    def leave(self, group: int) -> None:
        """The memory of a group is its own again: no answer is written there."""


class Root:
    """The rule is computed here."""

    def complete(self, complete: Round) -> Iterable[Outcome]:
        memory = complete.chunk.memory
        work = complete.start, complete.stop, complete.contributions, complete.outlets
        sends = SENT in complete.outlets
        return [Task(complete.chunk.owner, lambda: memory.apply_(*work), complete.finish, complete.nbytes, sends)]

    def leave(self, group: int) -> None:
        """The loop has waited for all tasks."""
