"""Child processes whose output is read line by line, and which never outlive this one."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import IO

from hybridps.cli.lifetime import adopt_orphans, die_with_parent, end_orphans
from hybridps.cli.run.output import ERR, OUT, LineSplitter, NoiseFilter, Screen
from hybridps.errors import ConfigError

_MARK = "_HYBRIDPS_CHILD"
_TICK_SECONDS = 0.2
_DRAIN_SECONDS = 2.0


@dataclass
class Child:
    """A process started by `Processes.start`."""

    name: str
    process: subprocess.Popen[bytes]
    on_line: Callable[[str], None]
    mark: str
    """A variable in its environment, which its descendants inherit."""
    noise: dict[str, NoiseFilter] = field(default_factory=lambda: {OUT: NoiseFilter(blocks=False), ERR: NoiseFilter()})
    status: int | None = None
    """Exit status as a shell counts it, 128 + n for signal n; None while the process runs."""

    @property
    def first_rank(self) -> int | None:
        """The rank that ended first, if mpirun named one."""
        return self.noise[ERR].first_rank

    def signal(self, number: int) -> None:
        if self.status is None:
            self.process.send_signal(number)


@dataclass(frozen=True)
class _Stream:
    child: Child
    kind: str
    pipe: IO[bytes]
    splitter: LineSplitter = field(default_factory=LineSplitter)


class Processes:
    """Starts processes and shows their output, all in one thread, which must outlive the processes.

    `on_end` is called once for each process, after its last line. Processes that it left running are killed.
    """

    def __init__(self, screen: Screen, on_end: Callable[[Child], None]) -> None:
        adopt_orphans()
        self._screen = screen
        self._on_end = on_end
        self._selector = selectors.DefaultSelector()
        self._children: list[Child] = []

    def start(
        self,
        name: str,
        command: Sequence[str],
        environ: Mapping[str, str],
        *,
        death_signal: int,
        on_line: Callable[[str], None] = lambda line: None,
    ) -> Child:
        """Start a process that gets `death_signal` when this one ends. Raises ConfigError if it cannot be started."""
        number = f"{os.getpid()}-{len(self._children)}"
        try:
            process = subprocess.Popen(
                command,
                env={**environ, _MARK: number},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C on the terminal reaches only the launcher
                preexec_fn=partial(die_with_parent, death_signal, os.getpid()),
            )
        except OSError as error:
            raise ConfigError(f"{command[0]} cannot be started: {error.strerror or error}") from None
        child = Child(name, process, on_line, f"{_MARK}={number}")
        self._children.append(child)
        for kind, pipe in ((OUT, process.stdout), (ERR, process.stderr)):
            if pipe is not None:
                self._selector.register(pipe, selectors.EVENT_READ, _Stream(child, kind, pipe))
        return child

    @property
    def running(self) -> list[Child]:
        return [child for child in self._children if child.status is None]

    @property
    def pids(self) -> list[int]:
        """Process ids of the running children."""
        return [child.process.pid for child in self.running]

    def until(self, condition: Callable[[], bool], seconds: float | None = None) -> bool:
        """Show output until the condition holds; false if `seconds` passed before that."""
        end = None if seconds is None else time.monotonic() + seconds
        while not condition():
            left = _TICK_SECONDS if end is None else min(_TICK_SECONDS, end - time.monotonic())
            if left <= 0:
                return False
            self._step(left)
        return True

    def stop(self, children: Sequence[Child], seconds: float, hurry: Callable[[], bool] = lambda: False) -> None:
        """Send SIGTERM, and SIGKILL after `seconds` or as soon as `hurry` returns true."""
        for child in children:
            child.signal(signal.SIGTERM)
        self.until(lambda: hurry() or all(child.status is not None for child in children), seconds)
        for child in children:
            child.signal(signal.SIGKILL)
        self.until(lambda: all(child.status is not None for child in children))

    def _step(self, seconds: float) -> None:
        for key, _ in self._selector.select(seconds):
            self._read(key.data)
        for child in self.running:
            for kind in (OUT, ERR):
                self._show(child, kind, child.noise[kind].tick())
            if child.process.poll() is not None:
                self._finish(child)

    def _read(self, stream: _Stream) -> None:
        data = os.read(stream.pipe.fileno(), 1 << 16)
        if not data:
            self._close(stream)
            return
        for line in stream.splitter.feed(data):
            self._line(stream, line)
        self._screen.transient(stream.child.name, stream.splitter.transient, stream.kind)

    def _line(self, stream: _Stream, line: str) -> None:
        child = stream.child
        self._show(child, stream.kind, child.noise[stream.kind].feed(line))

    def _show(self, child: Child, kind: str, lines: Sequence[str]) -> None:
        for line in lines:
            self._screen.line(child.name, line, kind)
            if kind == OUT:
                child.on_line(line)

    def _close(self, stream: _Stream) -> None:
        self._selector.unregister(stream.pipe)
        for line in stream.splitter.end():
            self._line(stream, line)
        stream.pipe.close()

    def _finish(self, child: Child) -> None:
        """The process has ended: kill its descendants, show its last output, and report its status."""
        end_orphans(self.pids, child.mark)
        self._drain(child)
        for kind in (OUT, ERR):
            self._show(child, kind, child.noise[kind].end())
        child.status = _status(child.process.returncode, child.noise[OUT].signal)
        self._screen.clear()
        self._on_end(child)

    def _drain(self, child: Child) -> None:
        """Read to the end. A process that the child left behind may hold the pipes open, so there is a deadline."""
        end = time.monotonic() + _DRAIN_SECONDS
        while (streams := self._open_streams(child)) and time.monotonic() < end:
            ready = [key.data for key, _ in self._selector.select(_TICK_SECONDS)]
            for stream in ready:
                self._read(stream)
        for stream in streams:
            self._close(stream)

    def _open_streams(self, child: Child) -> list[_Stream]:
        return [key.data for key in self._selector.get_map().values() if key.data.child is child]

    def close(self) -> None:
        """Release the descriptors, and kill remaining descendants. The processes must have ended."""
        end_orphans(self.pids)
        for child in self._children:
            for stream in self._open_streams(child):
                with contextlib.suppress(OSError):
                    self._close(stream)
        self._selector.close()


def _status(code: int, said: int | None) -> int:
    """The exit status as a shell counts it. MPICH's mpirun ends with the number of the signal that it named."""
    if code < 0:
        return 128 - code
    return 128 + code if code == said else code
