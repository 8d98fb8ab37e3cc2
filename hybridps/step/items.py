"""What a program asks of the step, in program order."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

Release = Callable[[], None]
"""Called on the communication thread when the item is done and its memory may be used."""

Inbox = queue.SimpleQueue["Item | tuple[Item, Release]"]


def do_nothing() -> None:
    """The release of an item that nobody waits for."""


class Item:
    """One thing that the program asked for.

    The program's thread makes it and posts it. Any thread calls it once, when its memory may be used: it has *arrived*
    then. Everything else belongs to the communication thread.
    """

    alone = False
    """Whether the item is done by itself, without asking whether all ranks have come to it."""

    def __init__(self, title: str, inbox: Inbox) -> None:
        self.title = title
        """What this is, in messages. Equal on all ranks."""
        self.shape = ""
        """Shape and dtype in words, where ranks may differ in them."""
        self.done = False
        self.release: Release | None = None
        """None until the item arrives."""
        self._inbox = inbox

    def __call__(self, release: Release = do_nothing) -> None:
        """The item has arrived. `release` is called when it is done."""
        self._inbox.put((self, release))

    @property
    def arrived(self) -> bool:
        return self.release is not None

    @property
    def can_merge(self) -> bool:
        """Whether more items of this kind may follow soon, so that it is worth waiting for them."""
        return False

    def run(self, items: Sequence[Item]) -> int:
        """Do this item, and those behind it in `items` that can be done together with it; how many were done.

        `items` begins with this item. All have arrived, on all ranks.
        """
        raise NotImplementedError

    def finish(self) -> None:
        """Mark the item as done, and release its memory."""
        self.done = True
        if self.release is not None:
            self.release()


class Work(Item):
    """A call on the communication thread. `local`: only this rank makes it, without the others."""

    def __init__(self, title: str, inbox: Inbox, work: Callable[[], Any], local: bool = False) -> None:
        super().__init__(title, inbox)
        self.alone = local
        self.result: Any = None
        self.ended = threading.Event()
        """Set when the result is there."""
        self._work = work

    def run(self, items: Sequence[Item]) -> int:
        self.result = self._work()
        self.finish()
        self.ended.set()
        return 1


class Stop(Item):
    """The end of the schedule."""

    alone = True
