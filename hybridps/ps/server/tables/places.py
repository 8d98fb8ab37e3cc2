"""The numbers of the groups of a job: those that it was started with, and those that have joined it."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field

from hybridps.errors import ProtocolError, ServerError
from hybridps.ps.joining import MOST_JOINED, Terms
from hybridps.ps.model import GroupTakenError


@dataclass
class Places:
    """The numbers of the groups of a job that was started with `groups` groups. The number of a group that has gone is
    reused only for a group of the same size, so that no two workers have the same number.
    """

    groups: int
    terms: Terms = field(default_factory=Terms)
    """The terms of the job, as its groups say. `sizes` has all groups, by number."""
    tickets: dict[int, int] = field(default_factory=dict)
    """For numbers from `groups` on, the ticket of the group that last got the number."""
    awaited: set[int] = field(default_factory=set)
    """Numbers that were given to groups that have not come yet."""

    def learn(self, terms: Terms) -> None:
        """Take in what one of the job's first groups says about the job."""
        if not self.terms.sizes and len(terms.sizes) == self.groups:
            self.terms = terms

    def size_of(self, group: int) -> int:
        """Return the number of workers of a group; 1 if it is not known."""
        return self.terms.sizes[group] if group < len(self.terms.sizes) else 1

    def give(self, sizes: Sequence[int], taken: set[int]) -> tuple[tuple[int, ...], int]:
        """Return numbers for groups of these sizes, and their ticket. `taken`: numbers that are in use.

        Raises ServerError if the sizes of the job's groups are not known, or if there are too many groups.
        """
        if len(self.terms.sizes) < self.groups:
            raise ServerError("its groups have not said how large they are: ask again when they have started")
        known, numbers, ticket = list(self.terms.sizes), list[int](), secrets.randbits(62)
        for size in sizes:
            free = [
                number
                for number in range(self.groups, len(known))
                if known[number] == size and number not in {*taken, *self.awaited, *numbers}
            ]
            numbers.append(free[0] if free else len(known))
            known += [] if free else [size]
        if len(known) > self.groups + MOST_JOINED:
            raise ServerError(f"it has places for {MOST_JOINED} groups more, each for one size: wait until one ends")
        self._set_sizes(tuple(known))
        self.tickets |= dict.fromkeys(numbers, ticket)
        self.awaited |= {*numbers}
        return tuple(numbers), ticket

    def check(self, group: int, terms: Terms, is_there: bool) -> None:
        """Raise ServerError unless the group may come: it is one of the first, or has the ticket of its number.

        The first server gives tickets, and is greeted first. The other servers accept any ticket.
        """
        if terms.ticket is None and not 0 <= group < self.groups:
            raise ProtocolError(f"group {group} is none of {self.groups} groups: they count from 0")
        if terms.ticket is None:
            return
        if not self.groups <= group < self.groups + MOST_JOINED:
            raise ProtocolError(f"group {group} cannot join a job of {self.groups} groups: ask for a number")
        known = self.tickets.get(group)
        if known == terms.ticket:
            return
        if terms.server == 0:
            raise ServerError(
                f"the number of group {group} was given to another group, as this one had gone: join the job again"
            )
        if is_there:
            raise GroupTakenError(f"group {group} is there already")

    def enter(self, group: int, terms: Terms) -> None:
        """Let in a group that may come."""
        self.awaited.discard(group)
        if terms.ticket is None:
            self.learn(terms)
            return
        self.tickets[group] = terms.ticket
        if terms.server and len(terms.sizes) > len(self.terms.sizes):
            self._set_sizes(terms.sizes)

    def _set_sizes(self, sizes: tuple[int, ...]) -> None:
        terms = self.terms
        self.terms = Terms(sizes, terms.settings, terms.servers, terms.server)
