"""A server in a process of its own that is killed again and again, and comes back by itself."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from hybridps.config import Settings
from hybridps.errors import ServerError
from hybridps.processes import ServerProcess

BACK = "the server is back"
"""A part of the line that a server prints when it serves again."""

RESTARTS = 1_000_000
BACK_SECONDS = 30.0


def children(pid: int) -> list[int]:
    """Return the process ids of the children of a process; none if it has ended."""
    try:
        return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


class RestartedServer(ServerProcess):
    """`hybridps serve --restarts`, with more `arguments`."""

    def __init__(self, settings: Settings, arguments: Sequence[str] = ()) -> None:
        self.said: list[str] = []
        """The lines of its standard error."""
        self._backs = 0
        self._news = threading.Condition()
        options = ["--restarts", str(RESTARTS), "--told-ends", *arguments]
        super().__init__(settings, arguments=options, stdin=subprocess.PIPE, hear=self._hear_line)

    def tell_end(self, job: str, group: int) -> None:
        """Report that a group has ended, as `hybridps run` does. Any thread may call this."""
        self._process.stdin.write(f"{job} {group}\n")  # type: ignore[union-attr]
        self._process.stdin.flush()  # type: ignore[union-attr]

    def kill(self) -> float:
        """Kill the process that serves. Return the moment, on the monotonic clock, when the next one serves.

        Raises ServerError if the server does not come back.
        """
        before = self._backs
        end = time.monotonic() + BACK_SECONDS
        while not (serving := children(self.pid)):  # between two lives
            if time.monotonic() > end:
                raise ServerError(f"no process serves: {''.join(self.said[-4:])}")
            time.sleep(0.001)
        os.kill(serving[0], signal.SIGKILL)
        with self._news:
            if not self._news.wait_for(lambda: self._backs > before, BACK_SECONDS):
                raise ServerError(f"the server did not come back: {''.join(self.said[-4:])}")
        return time.monotonic()

    def _hear_line(self, line: str) -> None:
        with self._news:
            self.said.append(line)
            self._backs += BACK in line
            self._news.notify_all()
