"""A server of its own process, which is started again when the test kills it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from hybridps.processes import SAYS


class RestartingServer:
    """`hybridps serve` with restarts. `address`: where it serves."""

    def __init__(self, restarts=1_000_000, options=()):
        command = [
            sys.executable,
            "-m",
            "hybridps",
            "serve",
            "--bind",
            "tcp://127.0.0.1:*",
            "--restarts",
            str(restarts),
        ]
        self.process = subprocess.Popen(
            [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        self.address = self.process.stdout.readline().strip().removeprefix(SAYS)
        self.said = []
        self._news = threading.Condition()
        self._backs = 0
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    @property
    def child(self):
        """The process that serves now; None between two of them."""
        pid = self.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return int(children[0]) if children else None

    def kill(self):
        """Kill the process that serves. Returns when the next one serves."""
        before = self._backs
        os.kill(self.child, signal.SIGKILL)
        with self._news:
            assert self._news.wait_for(lambda: self._backs > before, 30), self.said

    def close(self):
        self.process.terminate()
        self.process.wait(20)
        self._reader.join(20)
        self.process.stdout.close()
        self.process.stderr.close()

    def _read(self):
        for line in self.process.stderr:
            with self._news:
                self.said.append(line)
                self._backs += "is back" in line
                self._news.notify_all()
