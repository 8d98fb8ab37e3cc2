"""What reaches the communication thread, and what wakes it."""

from __future__ import annotations

import queue
import time
from collections import deque
from collections.abc import Collection
from contextlib import suppress
from typing import Generic, TypeVar

Entry = TypeVar("Entry")


class Inbox(Generic[Entry]):
    """Entries in the order in which threads have put them, for one thread that takes them.

    To wake a thread costs more than to put an entry, and takes the core from who computes: the taker says which entries
    it waits for, and finds the others there when it wakes.
    """

    def __init__(self) -> None:
        self._entries: deque[Entry] = deque()
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._sleeps = False
        self._keys: Collection[str] = ()

    def put(self, entry: Entry, key: str = "") -> None:
        """Add an entry. `key`: what it is about, if somebody may wait for that alone."""
        self._entries.append(entry)
        if self._sleeps and (not key or not self._keys or key in self._keys):
            self._wake.put(None)

    def wait(self, timeout_seconds: float | None, keys: Collection[str] = ()) -> bool:
        """Return when there are entries; whether there are some after so long. Some may be there already.

        With `keys`, entries about other keys that come while this waits do not end the wait.
        """
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        self._keys, self._sleeps = keys, True
        # A thread that did not see this one asleep has added its entry before this looks.
        while not self._entries:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                break
            with suppress(queue.Empty):
                self._wake.get(timeout=left)
        self._sleeps = False
        with suppress(queue.Empty):  # leaves no token of this sleep
            while True:
                self._wake.get_nowait()
        return bool(self._entries)

    def take(self) -> Entry | None:
        """The next entry, if there is one."""
        return self._entries.popleft() if self._entries else None
