"""The inbox of the communication thread, and what wakes that thread."""

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

    Waking a thread costs more than putting an entry, and takes the core from a thread that computes. So the taker says
    which entries it waits for, and finds the others when it wakes.
    """

    def __init__(self) -> None:
        self._entries: deque[Entry] = deque()
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._sleeps = False
        self._keys: Collection[str] = ()

    def put(self, entry: Entry, key: str = "") -> None:
        """Add an entry. `key`: what it is about, if a thread may wait for that alone."""
        self._entries.append(entry)
        if self._sleeps and (not key or not self._keys or key in self._keys):
            self._wake.put(None)

    def wait(self, timeout_seconds: float | None, keys: Collection[str] = ()) -> bool:
        """Wait until there are entries, or until the timeout. Returns whether there are any.

        With `keys`, entries about other keys that come during the wait do not end it.
        """
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        self._keys, self._sleeps = keys, True
        # A thread that did not see this one asleep has added its entry before this check.
        while not self._entries:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                break
            with suppress(queue.Empty):
                self._wake.get(timeout=left)
        self._sleeps = False
        with suppress(queue.Empty):  # removes what was put to wake this thread
            while True:
                self._wake.get_nowait()
        return bool(self._entries)

    def take_all(self) -> list[Entry]:
        """Return all entries that are there."""
        return [self._entries.popleft() for _ in range(len(self._entries))]
