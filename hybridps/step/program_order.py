"""What the program has asked for, in its order: all that ranks have in common without communication."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Sequence, Set
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from hybridps.step.schedule import Item

AnItem = TypeVar("AnItem", bound="Item")


class ProgramOrder:
    """The items that the program has posted and that are not done, in program order. Used by one thread."""

    def __init__(self) -> None:
        self._items: deque[Item] = deque()
        self._places = 0

    def append(self, item: Item) -> None:
        """Add the latest item, and give it its place among those that all ranks have."""
        self._items.append(item)
        self._places += not item.is_local
        item.place = self._places

    @property
    def latest(self) -> Item:
        """The latest item, if `head` is not None."""
        return self._items[-1]

    def head(self) -> Item | None:
        """Return the first item that is not done, or None."""
        while self._items and self._items[0].done:
            self._items.popleft()
        return self._items[0] if self._items else None

    def open(self) -> Iterator[Item]:
        """Return the items that are not done, in program order."""
        return (item for item in self._items if not item.done)

    def series(self, members: Sequence[AnItem], begun: Set[Item]) -> list[list[AnItem]]:
        """Return members apart where an item between them has not begun, and is not one of `begun`.

        Another group may need that item after the first of them, and before it can contribute to the second. The result
        is the same on all ranks on which all of these have arrived.
        """
        places = {member.place: member for member in members}
        first, last = min(places), max(places)
        if last - first < len(places):
            return [[*members]]
        series: list[list[AnItem]] = []
        apart = True
        for item in self._items:
            if item.done or item.is_local or not first <= item.place <= last:
                continue
            if item.place in places:
                if apart:
                    series.append([])
                series[-1].append(places[item.place])
                apart = False
            else:
                apart |= not item.has_begun and item not in begun
        return series

    def all_begun(self, place: int) -> bool:
        """Return whether everything before this place has begun or is done. The same on all ranks that are that far."""
        before = itertools.takewhile(lambda item: item.place < place, self._items)
        return all(item.has_begun or item.done or item.is_local for item in before)
