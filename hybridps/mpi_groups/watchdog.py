"""Reports a wait that takes too long, even inside a call that has no deadline of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Watchdog:
    """A thread that watches the current wait.

    It calls `late(what, seconds, final)` after a tenth of `deadline_seconds`, and again at the deadline, with `final`
    set. It also calls `check` regularly, at least once a second.
    """

    def __init__(self, deadline_seconds: float, late: Callable[[str, float, bool], None]) -> None:
        self._deadline = deadline_seconds
        self._late = late
        self.check: Callable[[], None] = lambda: None
        """Ends the group if it has to end for another reason."""
        self._watched: tuple[str | Callable[[], str], float] | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, name="hybridps-watchdog", daemon=True)
        self._thread.start()

    @contextmanager
    def watch(self, what: str | Callable[[], str]) -> Iterator[None]:
        """Watch the body of the `with` statement, called `what` in messages, or what `what` then returns.

        One thread uses this at a time.
        """
        self._watched = (what, time.monotonic())
        try:
            yield
        finally:
            self._watched = None

    def waits_for(self) -> str | None:
        """Return what the current wait is for, in words; None if there is none. Any thread may call this."""
        watched = self._watched
        return _in_words(watched[0]) if watched is not None else None

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _look(self) -> None:
        warned: tuple[str | Callable[[], str], float] | None = None
        while not self._stop.wait(min(1.0, self._deadline / 20)):
            self.check()
            watched = self._watched
            if watched is None:
                continue
            what, seconds = watched[0], time.monotonic() - watched[1]
            if seconds > self._deadline:
                self._late(_in_words(what), seconds, True)
            elif seconds > self._deadline / 10 and watched is not warned:
                warned = watched
                self._late(_in_words(what), seconds, False)


def _in_words(what: str | Callable[[], str]) -> str:
    return what if isinstance(what, str) else what()
