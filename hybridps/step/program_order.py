"""What the program has asked for, in its order: all that ranks have in common without communication."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hybridps.step.schedule import Item


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

    def has_others(self, owner: object, place: int) -> bool:
        """Return whether items of other owners come before this place. The same on all ranks that have got so far."""
        return any(
            item.owner is not owner for item in self._items if item.place < place and not (item.done or item.is_local)
        )
