"""What the program has asked for, in its order: all that ranks have in common without communication."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hybridps.step.schedule import Item


class ProgramOrder:
    """The items that the program has posted and that are not done, in program order. Used by one thread."""

    def __init__(self) -> None:
        self._items: deque[Item] = deque()

    def append(self, item: Item) -> None:
        """Add the latest item."""
        self._items.append(item)

    @property
    def latest(self) -> Item:
        """The latest item, if `head` is not None."""
        return self._items[-1]

    def head(self) -> Item | None:
        """Return the first item that is to be done, or None."""
        while self._items and self._items[0].done:
            self._items.popleft()
        return next(self.open(), None)

    def open(self) -> Iterator[Item]:
        """Return the items that are to be done, in program order."""
        return (item for item in self._items if not (item.done or item.is_aside))

    def leave_aside(self, items: Collection[Item]) -> bool:
        """Leave these items aside, except the last of them, if others are to be done before it. Returns whether so.

        If all of these have arrived on all ranks, the result is the same on all ranks.
        """
        left, others = len(items), False
        for item in self.open():
            left -= item in items
            if not left:
                break
            others |= item not in items and not item.is_local
        if others:
            for each in items:
                each.is_aside = each is not item
        return others
