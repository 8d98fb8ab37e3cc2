"""The inbox of the communication thread, and what wakes that thread."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from hybridps.compiled.arrivals import Arrivals
from hybridps.step.program_order import ProgramOrder

if TYPE_CHECKING:
    from hybridps.step.schedule import Item

Release = Callable[[], None]
"""Called on the communication thread when an item is done and its memory may be used."""


class Inbox:
    """The items that the program has posted, and those that have arrived. Any thread may put one there.

    Waking a thread costs more than putting an item there, and takes the core from a thread that computes. So the
    communication thread says what it waits for, and finds the rest when it wakes.
    """

    def __init__(self) -> None:
        self.arrivals: Arrivals[Item] = Arrivals()
        """What threads report without Python."""
        self.items = ProgramOrder()
        """The posted items that were taken and are not done."""
        self.last_change = time.monotonic()
        """When anything was last taken, on the monotonic clock."""
        self._entries: deque[tuple[Item, Release | None]] = deque()
        self._sleeps = False
        self._names: Collection[str] | None = None
        self._mergeable = 0
        """The number of items that more may be merged with, and that have not arrived."""

    def put(self, item: Item, release: Release | None = None) -> None:
        """Add an item that was posted, or, with its `release`, an item that has arrived."""
        self._entries.append((item, release))
        name = item.name
        if self._sleeps and (not name or self._names is None or name in self._names):
            self.arrivals.wake()

    # The methods below are those of the communication thread.

    def take(self, timeout_seconds: float | None) -> bool:
        """Wait until an item is posted or arrives, and take all that did. Returns whether one came in time."""
        return self._wait(timeout_seconds, None, None)

    def take_first_of(self, timeout_seconds: float, items: Iterable[Item], names: Collection[str] = ()) -> bool:
        """As `take`, but only these items, two at most, end the wait when they arrive, and these names when posted.

        Items without a name always end it.
        """
        tickets = [item.ticket for item in items if not item.arrived]
        if all(tickets):
            return self._wait(timeout_seconds, names, tickets)
        # An item without a ticket is about to get one, or to be called.
        return self._wait(timeout_seconds, (*names, *(item.name for item in items)), None)

    def take_all(self) -> None:
        """Take everything that was posted or has arrived by now."""
        arrivals = self.arrivals.take()  # before the entries, because an item is posted before it arrives
        count = len(self._entries)
        for _ in range(count):
            item, release = self._entries.popleft()
            if release is None:
                self.items.append(item)
                self._mergeable += item.can_merge
                item.seen()
            else:
                item.release = release
                self._note_arrival(item)
        for item, item.arrived_at in arrivals:
            self._note_arrival(item)
        if count or arrivals:
            self.last_change = time.monotonic()

    @property
    def expects_more(self) -> bool:
        """Whether an item may come that could be merged with the latest ones."""
        return bool(self._mergeable) or self.items.latest.can_merge

    def close(self) -> None:
        """Free the memory of the arrivals. Nothing is put or taken from then on."""
        self.arrivals.close()

    def _wait(
        self, timeout_seconds: float | None, names: Collection[str] | None, tickets: Sequence[int] | None
    ) -> bool:
        """Wait as `take` and `take_first_of` do. None stands for all names, or all tickets."""
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        self._names, self._sleeps = names, True
        # A thread that did not see this one asleep has put its item there before this check.
        while not (self._entries or self.arrivals.has_any):
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                break
            self.arrivals.sleep(left, tickets)
        self._sleeps = False
        if not (self._entries or self.arrivals.has_any):
            return False
        self.take_all()
        return True

    def _note_arrival(self, item: Item) -> None:
        item.arrived = True
        self._mergeable -= item.can_merge
        item.seen()
