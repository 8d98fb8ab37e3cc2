"""What groups were told last of a chunk, in case that a contribution comes again. Only the loop uses it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hybridps.errors import HybridPSError, ServerError
from hybridps.ps.clocks import Part
from hybridps.ps.model import Origin

MOST_PARTS = 256
"""Parts of a chunk that a group may have under way, or that its answers are remembered for."""


class GivenAnswer(NamedTuple):
    """The answer to a contribution. `values` are kept where they could not be made again."""

    part: Part
    origin: Origin
    values: np.ndarray | None
    error: HybridPSError | None


class Answers:
    """Of the chunk `name`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._of_group: dict[int, list[GivenAnswer]] = {}

    def add(self, told: GivenAnswer) -> None:
        """A group was told this."""
        self._of_group.setdefault(told.part.group, []).append(told)

    def find(self, part: Part, origin: Origin) -> GivenAnswer | None:
        """What was told of a contribution that came before; None for a new one.

        Raises ServerError for one that a later one has followed.
        """
        known = self._of_group.get(part.group, ())
        overlapping = [told for told in known if told.origin.epoch == origin.epoch and overlap(told.part, part)]
        if any(told.origin.request > origin.request for told in overlapping):
            raise ServerError(
                f"the answer to request {origin.request} for {self._name} was lost, and a later one has counted: "
                "have one exchange of a chunk under way at a time"
            )
        return next((told for told in overlapping if told.origin == origin and told.part == part), None)

    def forget(self, part: Part) -> None:
        """A group that contributes again has the answer of the round before.

        What it was told of more elements is kept: it tells a copy that comes late from a new contribution.
        """
        told = self._of_group.get(part.group)
        if told:
            self._of_group[part.group] = [each for each in told if not _covers(part, each.part)][-MOST_PARTS:]

    def settle(self, group: int, request: int) -> None:
        """The group has all answers to its requests before that one."""
        if group in self._of_group:
            self._of_group[group] = [told for told in self._of_group[group] if told.origin.request >= request]

    def leave(self, group: int) -> None:
        """A group is gone."""
        self._of_group.pop(group, None)


def overlap(one: Part, other: Part) -> bool:
    """Whether two parts have an element in common."""
    return one.start < other.stop and other.start < one.stop


def _covers(part: Part, other: Part) -> bool:
    return part.start <= other.start and other.stop <= part.stop
