"""A server of a process of its own that is killed again and again, and comes back by itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType

from hybridps.config import Settings
from hybridps.processes import SAYS, STOP_SECONDS, child_environment

BACK = "the server is back"
"""Part of the line that a server prints when it serves again."""

RESTARTS = 1_000_000
BACK_SECONDS = 30.0


class ServerError(Exception):
    """The server did not start, or did not come back."""


def children(pid: int) -> list[int]:
    """Process ids of the children of a process; none if it has ended."""
    try:
        return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


class RestartedServer:
    """`hybridps serve --restarts`. `address`: where it serves. A context manager."""

    def __init__(self, settings: Settings) -> None:
        command = [sys.executable, "-m", "hybridps", "serve", "--bind", "tcp://127.0.0.1:*"]
        self._process = subprocess.Popen(
            [*command, "--restarts", str(RESTARTS), "--told-ends"],
            env=child_environment(os.environ, settings),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.said: list[str] = []
        """Its lines on standard error."""
        self._backs = 0
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, name="server-output", daemon=True)
        self._reader.start()
        self.address = self._process.stdout.readline().strip().removeprefix(SAYS)  # type: ignore[union-attr]
        if not self.address:
            self.close()
            raise ServerError(f"the server did not start: {''.join(self.said)}")

    def tell_end(self, job: str, group: int) -> None:
        """Say that a group has ended, as `hybridps run` does. Any thread may call this."""
        self._process.stdin.write(f"{job} {group}\n")  # type: ignore[union-attr]
        self._process.stdin.flush()  # type: ignore[union-attr]

    def kill(self) -> float:
        """Kill the process that serves; returns the moment (of the monotonic clock) when the next one serves.

        Raises ServerError if it does not come back.
        """
        before = self._backs
        end = time.monotonic() + BACK_SECONDS
        while not (serving := children(self._process.pid)):  # it is between two lives
            if time.monotonic() > end:
                raise ServerError(f"no process serves: {''.join(self.said[-4:])}")
            time.sleep(0.001)
        os.kill(serving[0], signal.SIGKILL)
        with self._news:
            if not self._news.wait_for(lambda: self._backs > before, BACK_SECONDS):
                raise ServerError(f"the server did not come back: {''.join(self.said[-4:])}")
        return time.monotonic()

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(STOP_SECONDS)

    def __enter__(self) -> RestartedServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read(self) -> None:
        for line in self._process.stderr:  # type: ignore[union-attr]
            with self._news:
                self.said.append(line)
                self._backs += BACK in line
                self._news.notify_all()
