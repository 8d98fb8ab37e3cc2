"""What has come about a table, and waits for its next averaging."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from hybridps.gossip.letter import ANSWERS, WITH_VALUES, Letter
from hybridps.memory import Layout

MOST_WAITING = 8
"""Requests of one group about one table that wait. One that asks only again when it was answered has fewer."""


class Incoming(NamedTuple):
    """A letter about weights. `values`: of elements `start:stop` of the table, if it has any."""

    sender: int
    letter: Letter
    values: np.ndarray | None


@dataclass
class Inbox:
    """What waits for the averaging of a table."""

    layout: Layout
    letters: deque[Incoming] = field(default_factory=deque)
    returned: set[int] = field(default_factory=set)
    """Groups that have a new life since this one has averaged: their weights are initial values."""
    has_begun: bool = False
    asked: set[tuple[int, int]] = field(default_factory=set)
    """Groups, and numbers of requests to them that they have not answered."""

    def has_room(self, sender: int, letter: Letter) -> bool:
        """Whether the letter may wait here: one answer to each request, and a bounded number of others."""
        if letter.kind in ANSWERS:
            return (sender, letter.number) in self.asked
        waiting = (waits for waits in self.letters if waits.sender == sender and waits.letter.kind not in ANSWERS)
        return sum(1 for _ in waiting) < MOST_WAITING

    def forget(self, sender: int) -> None:
        """Drop what a former life of a group has sent: what it has added to its weights is lost with them."""
        self.asked = {(peer, number) for peer, number in self.asked if peer != sender}
        self.letters = deque(waits for waits in self.letters if waits.sender != sender)

    def read(self, sender: int, letter: Letter, payload: np.ndarray | None) -> Incoming | None:
        """The letter, if its span and length are right."""
        if letter.kind not in WITH_VALUES:
            is_span = letter.kind != "pull" or letter.start < letter.stop <= self.layout.length
            return Incoming(sender, letter, None) if payload is None and is_span else None
        nbytes = (letter.stop - letter.start) * self.layout.itemsize
        if not letter.start < letter.stop <= self.layout.length or payload is None or payload.nbytes != nbytes:
            return None
        return Incoming(sender, letter, payload.view(self.layout.dtype))
