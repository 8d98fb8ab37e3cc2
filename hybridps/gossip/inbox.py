"""The letters about a table that wait for its next averaging."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from hybridps.gossip.letter import ANSWERS, WITH_VALUES, Letter
from hybridps.memory import Layout

MOST_WAITING = 8
"""The number of one group's requests about one table that may wait. A group that waits for each answer has fewer."""


class Incoming(NamedTuple):
    """A letter about weights. `values`: elements `start:stop` of the table, if the letter has any."""

    sender: int
    letter: Letter
    values: np.ndarray | None


@dataclass
class Inbox:
    """The letters about one table, and what is known of the groups that sent them."""

    layout: Layout
    letters: deque[Incoming] = field(default_factory=deque)
    returned: set[int] = field(default_factory=set)
    """Groups that have begun a new life since this one has averaged: their weights are initial values."""
    has_begun: bool = False
    asked: set[tuple[int, int]] = field(default_factory=set)
    """The requests that are not answered: the group that was asked, and the number of the request."""

    def has_room(self, sender: int, letter: Letter) -> bool:
        """Return whether the letter may wait here: one answer to each request, and a bounded number of requests."""
        if letter.kind in ANSWERS:
            return (sender, letter.number) in self.asked
        waiting = (waits for waits in self.letters if waits.sender == sender and waits.letter.kind not in ANSWERS)
        return sum(1 for _ in waiting) < MOST_WAITING

    def forget(self, sender: int) -> None:
        """Drop what a former life of a group has sent. What that life has added to its weights is lost with them."""
        self.asked = {(peer, number) for peer, number in self.asked if peer != sender}
        self.letters = deque(waits for waits in self.letters if waits.sender != sender)

    def read(self, sender: int, letter: Letter, payload: np.ndarray | None) -> Incoming | None:
        """Return the letter with its values, or None if its span or length is wrong."""
        if letter.kind not in WITH_VALUES:
            is_span = letter.kind != "pull" or letter.start < letter.stop <= self.layout.length
            return Incoming(sender, letter, None) if payload is None and is_span else None
        nbytes = (letter.stop - letter.start) * self.layout.itemsize
        if not letter.start < letter.stop <= self.layout.length or payload is None or payload.nbytes != nbytes:
            return None
        return Incoming(sender, letter, payload.view(self.layout.dtype))
