"""Child processes that end with the process that started them, and a server as such a child. Linux only."""

from __future__ import annotations

import ctypes
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from hybridps.config import PREFIX, Settings, to_environment
from hybridps.errors import ServerError

START_SECONDS = 60.0
"""How long a server may take to print its address. Disks may be slow, and MXNet's servers import MXNet."""

SERVER_RESTARTS = 3
"""How often a server of a job is restarted when it dies, unless configured otherwise and where it is possible."""

STOP_SECONDS = 5.0
"""How long a process may take to end after it was asked to."""

SAYS = "hybridps: serving at "
"""The text before the address of a server on its output."""

MPI_MEMORY = ("OMPI_MCA_btl_sm_backing_directory", "OMPI_MCA_btl_vader_backing_directory")
"""Open MPI's variables, of several versions, for the folder of the memory that ranks share."""

MPI_MEMORY_HERE = "_HYBRIDPS_MPI_MEMORY"
"""The variable for such a folder that is only on the launcher's host. Other ranks do not find the folder."""

_SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG

prctl = getattr(ctypes.CDLL(None), "prctl", lambda *arguments: -1)
"""Found at import, because `die_with_parent` may run between fork and exec."""

# Does what `die_with_parent` does, then becomes the command. It is a program of its own, because running a function
# between fork and exec is not safe beside threads and MPI.
_ENDS_WITH_PARENT = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGTERM)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""


def die_with_parent(signal_number: int = signal.SIGKILL, parent: int | None = None) -> None:
    """Have the kernel send this process the signal when its parent ends, however it ends.

    This holds across exec, but not for the children of this process. `parent` is the expected process id of the parent:
    if that parent is gone already, this process ends at once.

    To the kernel, the parent is the *thread* that started this process, so start it from a long-lived thread. Call this
    only in a process that a launcher started: in a process started from a shell, it would end a job that is meant to
    outlive the shell (`nohup`).
    """
    prctl(_SET_DEATH_SIGNAL, int(signal_number), 0, 0, 0)
    if parent is not None and os.getppid() != parent:
        os.kill(os.getpid(), signal_number)


def use_memory_here() -> None:
    """Put the memory that ranks share into the launcher's folder, if this rank is on its host. Before MPI starts."""
    folder = os.environ.pop(MPI_MEMORY_HERE, None)
    if folder is not None and os.path.isdir(folder):
        os.environ[MPI_MEMORY[0]] = folder


def without_rank_marks(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables without those that mark a process as an MPI rank, so that children do not inherit them."""
    marks = ("OMPI_COMM_WORLD_", "OMPI_UNIVERSE_", "PMI_", "PMIX_", "PRTE_", "MV2_COMM_WORLD_")
    kept = ("PRTE_MCA_", "PRTE_ALLOW_", "PMIX_MCA_")
    return {name: value for name, value in environ.items() if not name.startswith(marks) or name.startswith(kept)}


def child_environment(environ: Mapping[str, str], settings: Settings) -> dict[str, str]:
    """Return the variables of a child: those of this process, with these settings in place of its own."""
    return {name: value for name, value in environ.items() if not name.startswith(PREFIX)} | to_environment(settings)


Own = TypeVar("Own", bound="ServerProcess")


class ServerProcess:
    """Starts `hybridps serve`, and stops it at the end. The server also ends with the thread that started it.

    `address` is where it serves. `command` replaces the program (default: this Python's hybridps). The server is no
    rank of an MPI world. `stdin`: as for `subprocess.Popen`. A thread calls `hear` with each line of its standard
    error. Raises ServerError if it does not print its address within `start_seconds`.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        arguments: Sequence[str] = (),
        command: Sequence[str] = (sys.executable, "-m", "hybridps", "serve"),
        start_seconds: float = START_SECONDS,
        stdin: int = subprocess.DEVNULL,
        hear: Callable[[str], object] | None = None,
    ) -> None:
        self._command = [*command, *arguments]
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _ENDS_WITH_PARENT, str(os.getpid()), *self._command],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=None if hear is None else subprocess.PIPE,
            text=True,
            env=child_environment(without_rank_marks(os.environ), settings),
        )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        reads: list[Callable[[], None]] = [self._read] if hear is None else [self._read, partial(self._hear, hear)]
        self._readers = [threading.Thread(target=read, name="hybridps-server-output", daemon=True) for read in reads]
        for reader in self._readers:
            reader.start()
        try:
            self.address = self._read_address(start_seconds)
        except BaseException:
            self.stop()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def stop(self) -> int:
        """Ask the server to end, kill it if it does not, and return its exit status. Takes a bounded time."""
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        # A child of the server could hold the pipe open, so this wait is bounded.
        for reader in self._readers:
            reader.join(STOP_SECONDS)
        if self._process.stdin is not None:
            self._process.stdin.close()
        return self._process.returncode

    def __enter__(self: Own) -> Own:
        return self

    def __exit__(self, *failure: object) -> None:
        self.stop()

    def _read(self) -> None:
        """Take the first line, and keep the pipe empty, because a full pipe would block the server."""
        with self._process.stdout as output:  # type: ignore[union-attr]
            self._lines.put(output.readline())
            for _ in output:
                pass

    def _hear(self, hear: Callable[[str], object]) -> None:
        with self._process.stderr as lines:  # type: ignore[union-attr]
            for line in lines:
                hear(line)

    def _read_address(self, seconds: float) -> str:
        shown = " ".join(self._command)
        try:
            line = self._lines.get(timeout=seconds)
        except queue.Empty:
            raise ServerError(f"the server `{shown}` did not say its address within {seconds:g} s") from None
        if not line.startswith(SAYS):
            status = self.stop()
            raise ServerError(
                f"the server `{shown}` said {line.strip()!r} instead of its address, and ended with status {status}; "
                "its reason stands on standard error"
            )
        return line.removeprefix(SAYS).strip()
