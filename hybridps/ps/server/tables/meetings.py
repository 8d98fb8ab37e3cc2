"""Where the groups of a job that train in step meet, and groups that were restarted come in. Only the loop uses it."""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass, field

from msgspec.structs import replace

from hybridps.ps.model import Met, Origin


@dataclass
class Meetings:
    """The meetings of the groups of a job. They are held at its first server; the groups tell the others who trains.

    While all groups that train are in a meeting, none of their rounds is under way, at any server. So groups that were
    restarted begin to take part there, all of them with the same step. At the first meeting nobody has trained, and all
    groups come alike.
    """

    held: int = 0
    """The number of meetings held so far."""
    trains: set[int] = field(default_factory=set)
    """The groups that have trained together since the last meeting and have not gone."""
    last: Met | None = None
    """The last answer, to one of the groups."""
    answered: dict[int, Origin] = field(default_factory=dict)
    """The last request of each group that was answered. It may arrive again."""

    def __post_init__(self) -> None:
        self._waiting: dict[int, Origin] = {}
        self._away: set[int] = set()
        """Groups that trained, were lost, and may come back before the next meeting."""

    def come(self, origin: Origin) -> list[Met]:
        """Note that a group has come to a meeting. Returns the answer if the same request was answered before."""
        if self.last is not None and self.answered.get(origin.group) == origin:
            return [replace(self.last, origin=origin)]
        self._waiting[origin.group] = origin
        return []

    def leave(self, group: int) -> None:
        """Note that a group has gone."""
        self._away.discard(group)
        if group in self.trains:
            self._away.add(group)
        self._waiting.pop(group, None)
        self.answered.pop(group, None)
        self.trains.discard(group)

    def come_back(self, group: int) -> None:
        """Note that a group continues as if it had not been lost."""
        self.trains |= self._away & {group}
        self._away.discard(group)

    def missing(self, first: Set[int]) -> bool:
        """Return whether a group that trains has not come. `first`: the groups that the first meeting is for."""
        expected = self.trains if self.held else first
        return not (self._waiting and expected <= self._waiting.keys())

    def hold(self, life_of: Callable[[int], int], finished: bool) -> list[Met]:
        """Hold a meeting of the groups that have come. Returns the answers.

        `life_of` returns the life of a group. `finished`: whether some group has come to the end of its training.
        """
        newcomers = tuple(sorted(self._waiting.keys() - self.trains)) if self.held else ()
        giver = min(self.trains, default=None) if newcomers else None
        self.held += 1
        if not newcomers or giver is not None:
            self.trains = {*self._waiting}
        trains = {group: life_of(group) for group in sorted(self.trains)}
        answers = [Met(origin, self.held, trains, newcomers, giver, finished) for origin in self._waiting.values()]
        self.last, self.answered = answers[0], self._waiting
        self._waiting, self._away = {}, set()
        return answers

    def learn(self, number: int, here: Set[int], away: Set[int]) -> Set[int]:
        """Learn of a new meeting at the first server. Returns the groups that did not train before.

        `here`: the groups that train now. `away`: more of them, which this server has lost, and which may come back.
        """
        newcomers = here - self.trains if self.held else set()
        self.held, self.trains, self._away = number, {*here}, {*away}
        return newcomers
