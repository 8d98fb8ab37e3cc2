"""A server as a child process."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from collections.abc import Sequence
from types import TracebackType

from hybridps.config import PREFIX, Settings, to_environment
from hybridps.errors import ServerError

_SAYS = "hybridps: serving at "
START_SECONDS = 60.0
"""How long a server may take to say its address: disks may be slow, and MXNet's servers import MXNet."""

_STOP_SECONDS = 5.0

# The child asks to be ended with its parent, makes sure that the parent is still there, and becomes the
# command. Done in the child, for a function between fork and exec is not safe beside threads and MPI.
_ENDS_WITH_PARENT = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGTERM)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""

_MPI_PREFIXES = ("OMPI_", "PMI_", "PMIX_", "MV2_", "MPI_LOCAL", "PRTE_", "SLURM_PMI")


class ServerProcess:
    """Starts `hybridps serve` and stops it in the end; it also ends with the thread that started it.

    `address` is where it serves. `command` replaces the program (the default: this Python's hybridps).
    Raises ServerError if it does not say its address within `start_seconds`.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        bind: str = "tcp://127.0.0.1:*",
        insecure: bool = False,
        arguments: Sequence[str] = (),
        command: Sequence[str] | None = None,
        start_seconds: float = START_SECONDS,
    ) -> None:
        if command is None:
            command = [sys.executable, "-m", "hybridps", "serve", "--bind", bind]
            command += ["--insecure"] if insecure else []
        self._command = [*command, *arguments]
        self._process = _start(self._command, settings)
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, name="hybridps-server-output", daemon=True)
        self._reader.start()
        try:
            self.address = self._read_address(start_seconds)
        except BaseException:
            self.stop()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def stop(self) -> int:
        """Ask it to end, make it end if it does not, and return its exit status. In bounded time."""
        if self.running:
            self._process.terminate()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        # A child of the server could hold the pipe open: do not wait for that.
        self._reader.join(_STOP_SECONDS)
        return self._process.returncode

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _read(self) -> None:
        """Take the first line, and keep the pipe empty: a full one would hold the server up."""
        with self._process.stdout as output:  # type: ignore[union-attr]
            self._lines.put(output.readline())
            for _ in output:
                pass

    def _read_address(self, seconds: float) -> str:
        shown = " ".join(self._command)
        try:
            line = self._lines.get(timeout=seconds)
        except queue.Empty:
            raise ServerError(f"the server `{shown}` did not say its address within {seconds:g} s") from None
        if not line.startswith(_SAYS):
            status = self.stop()
            raise ServerError(
                f"the server `{shown}` said {line.strip()!r} instead of its address, and ended with status {status}; "
                "its reason stands on standard error"
            )
        return line.removeprefix(_SAYS).strip()


def _start(command: Sequence[str], settings: Settings) -> subprocess.Popen[str]:
    """Start `command` with `settings` in its environment; it is no rank of an MPI launcher."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith((*_MPI_PREFIXES, PREFIX))}
    wrapper = [sys.executable, "-I", "-S", "-c", _ENDS_WITH_PARENT, str(os.getpid())]
    return subprocess.Popen(
        [*wrapper, *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        env=kept | to_environment(settings),
    )
