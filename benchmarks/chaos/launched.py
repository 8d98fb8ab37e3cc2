"""A training under `hybridps run`, and its processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from benchmarks.chaos.servers import BACK, RESTARTS, children

TOP = Path(__file__).parents[2]
WORKERS = 2
"""The number of workers in a group."""

ALGORITHMS = {
    # every:4, as the usual trigger depends on measured times
    "elastic": ("--algorithm", "elastic", "--tau", "4"),
    # The script gives the rule, and the default algorithm is synchronous. If a rank dies, all groups begin anew.
    "sync-server": (),
    "async": ("--algorithm", "async"),
}
"""The options of `hybridps run` for each algorithm of the benchmark."""

STOP_SECONDS = 20.0


class Launched:
    """A launch of `hybridps run` whose groups train on the digits. A context manager.

    `folder`: where the workers write. Faults hit only processes that this launch has started.
    """

    def __init__(self, folder: Path, groups: int, algorithm: str) -> None:
        words = ["run", "-n", str(WORKERS * groups), "--groups", str(groups), "--servers", "1", "--quiet"]
        words += ["--restarts", str(RESTARTS), "--server-restarts", str(RESTARTS), *ALGORITHMS[algorithm]]
        train = ["--", "python", "-m", "benchmarks.chaos.digits_worker", str(folder), algorithm]
        paths = [str(TOP), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.said: deque[str] = deque(maxlen=200)
        """The last lines of its output."""
        self.backs = 0
        """How often it reported that a server was back."""
        self.restarts = 0
        """How often it reported that groups were started again."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "hybridps", *words, *train],
            env=os.environ
            | {"PYTHONPATH": os.pathsep.join(paths), "HYBRIDPS_JOB": f"chaos-{os.getpid()}-{folder.name}"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, name="launcher-output", daemon=True)
        self._reader.start()

    @property
    def status(self) -> int | None:
        """The exit status; None while it runs."""
        return self._process.poll()

    def last_lines(self) -> str:
        """Return the last part of its output."""
        return "".join(self.said)[-3000:]

    def rank(self, group: int, rank: int) -> int | None:
        """Return the process id of a rank of a group; None if the rank does not run."""
        wanted = {f"HYBRIDPS_GROUP_INDEX={group}".encode()}
        ranks = {f"{name}={rank}".encode() for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK")}
        for pid in descendants(self._process.pid):
            with suppress(OSError):
                told = set(Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
                if wanted <= told and ranks & told:
                    return pid
        return None

    def server(self) -> int | None:
        """Return the process id of the process that serves; None between two of its lives."""
        for pid in children(self._process.pid):
            with suppress(OSError):
                if b"serve" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                    return next(iter(children(pid)), None)
        return None

    def wait(self, seconds: float) -> int | None:
        """Wait until the launch ends by itself. Return its exit status; None if it takes longer."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self._process.poll()

    def __enter__(self) -> Launched:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            for pid in descendants(self._process.pid):  # the launcher could not end stopped processes
                with suppress(OSError):
                    os.kill(pid, signal.SIGCONT)
            self._process.terminate()
        if self.wait(STOP_SECONDS) is None:
            self._process.kill()
            self._process.wait()
        self._reader.join(STOP_SECONDS)

    def _read(self) -> None:
        for line in self._process.stdout:  # type: ignore[union-attr]
            self.said.append(line)
            self.backs += BACK in line
            self.restarts += "started again, " in line


def descendants(pid: int) -> Iterator[int]:
    """Yield the process ids of the children of a process, of their children, and so on."""
    for child in children(pid):
        yield child
        yield from descendants(child)
