"""Child processes whose output is read line by line, and which never outlive this one."""

from __future__ import annotations

import contextlib
import math
import os
import re
import secrets
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType

from hybridps.cli.run.children import keeper
from hybridps.cli.run.children.child import Child, Stream, open_streams
from hybridps.cli.run.children.noise import NoiseFilter
from hybridps.cli.run.children.output import ERR, OUT, Screen
from hybridps.cli.run.children.rank_ends import RankEnds
from hybridps.cli.run.children.rank_lines import RankSplitter
from hybridps.errors import FAILED, ConfigError
from hybridps.processes import STOP_SECONDS, die_with_parent, prctl

_MARK = "_HYBRIDPS_CHILD"
_SET_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER
_TICK_SECONDS = 0.2
_DRAIN_SECONDS = 2.0


class Processes:
    """Starts processes and shows their output, all in one thread, which must outlive the processes.

    `on_end` is called once for each process, after its last line. Processes that it left behind are killed. If this
    process is killed, a keeper (`keeper.py`) ends what does not end by itself.
    """

    def __init__(self, screen: Screen, on_end: Callable[[Child], None]) -> None:
        prctl(_SET_SUBREAPER, 1, 0, 0, 0)  # become the parent of processes whose own parent ends, to end them
        self._screen = screen
        self._on_end = on_end
        self.on_step: Callable[[], None] = lambda: None
        """Called several times a second."""
        self._selector = selectors.DefaultSelector()
        self._children: list[Child] = []
        self._mark = f"{_MARK}={os.getpid()}-{secrets.token_hex(4)}-"
        self._keeper = subprocess.Popen(
            [sys.executable, "-I", "-S", keeper.__file__, self._mark],
            # This leaves out the mark of an outer launcher.
            env={name: value for name, value in os.environ.items() if name != _MARK},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def make_folder(self, stack: ExitStack, place: str | None = None) -> str:
        """Make a new folder in the temporary one or in `place`. It goes with the stack, or when this process dies."""
        folder = stack.enter_context(TemporaryDirectory(prefix="hybridps-", dir=place, ignore_cleanup_errors=True))
        self.remove_if_killed(folder)
        return folder

    def remove_if_killed(self, folder: str | Path, if_empty: bool = False) -> None:
        """Have the keeper remove a folder, or a link to one, if this process is killed; perhaps only `if_empty`."""
        self._tell_keeper(f"{keeper.EMPTY if if_empty else keeper.FOLDER}{folder}")

    def start(
        self,
        name: str,
        command: Sequence[str],
        environ: Mapping[str, str],
        *,
        death_signal: int,
        listens: bool = False,
        on_line: Callable[[str], bool] = lambda line: False,
        tag: re.Pattern[bytes] | None = None,
        names: Mapping[int, str] = MappingProxyType({}),
        ends: RankEnds | None = None,
        hosts: str = "",
    ) -> Child:
        """Start a process that gets `death_signal` when this one ends. The others are as in `Child`.

        `listens`: the process reads what `Child.tell` writes to its standard input. `tag` is as in `RankSplitter`.

        Raises ConfigError if it cannot be started.
        """
        mark = f"{self._mark}{len(self._children)}"
        try:
            process = subprocess.Popen(
                command,
                env={**environ, _MARK: mark.partition("=")[2]},
                stdin=subprocess.PIPE if listens else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C on the terminal reaches only the launcher
                preexec_fn=partial(die_with_parent, death_signal, os.getpid()),
            )
        except OSError as error:
            raise ConfigError(f"{command[0]} cannot be started: {error.strerror or error}") from None
        if process.stdin is not None:
            os.set_blocking(process.stdin.fileno(), False)
        child = Child(name, process, on_line, names, mark, ends, hosts)
        self._children.append(child)
        with contextlib.suppress(AttributeError, OSError):  # Linux before 5.3, or a Python built for it
            child.end = os.pidfd_open(process.pid)
            self._selector.register(child.end, selectors.EVENT_READ)
        for kind, pipe in ((OUT, process.stdout), (ERR, process.stderr)):
            if pipe is not None:
                child.streams.append(Stream(child, kind, pipe, NoiseFilter(blocks=kind == ERR), RankSplitter(tag)))
                self._selector.register(pipe, selectors.EVENT_READ, child.streams[-1])
        return child

    @property
    def running(self) -> list[Child]:
        return [child for child in self._children if child.status is None]

    def until(self, condition: Callable[[], bool], seconds: float = math.inf) -> bool:
        """Show output until the condition holds. Return False if `seconds` passed before that."""
        end = time.monotonic() + seconds
        while not condition():
            left = end - time.monotonic()
            if left <= 0:
                return False
            self._step(min(left, _TICK_SECONDS))
        return True

    def stop(self, children: Sequence[Child], hurry: Callable[[], bool]) -> None:
        """Send SIGTERM, then SIGKILL after `STOP_SECONDS` or as soon as `hurry` returns True; wait for the end.

        SIGKILL goes to the child's process group, because mpirun starts helpers, such as ssh, that would keep running.
        """

        def have_ended() -> bool:
            return all(child.status is not None for child in children)

        for child in children:
            child.process.send_signal(signal.SIGTERM)
        self.until(lambda: hurry() or have_ended(), STOP_SECONDS)
        for child in children:
            if child.status is None:
                _kill_group(child)
        self.until(have_ended)

    def _step(self, seconds: float) -> None:
        self._read_ready(seconds)
        self.on_step()
        for child in self.running:
            for stream in child.streams:
                self._show(stream, stream.noise.tick())
            if child.process.poll() is not None:
                self._finish(child)
            elif child.ends is not None and child.ends.is_overdue:
                _kill_group(child)

    def _read_ready(self, seconds: float) -> None:
        for key, _ in self._selector.select(seconds):
            if key.data is not None:
                self._read(key.data)
            else:
                self._selector.unregister(key.fileobj)  # a process has ended, which `_step` will notice

    def _read(self, stream: Stream) -> None:
        data = os.read(stream.pipe.fileno(), 1 << 16)
        if not data:
            self._close(stream)
            return
        for rank, line in stream.splitter.feed(data):
            self._take(stream, rank, line)
        rank, line = stream.splitter.transient
        self._screen.transient(stream.child.name_of(rank), line, stream.kind)

    def _take(self, stream: Stream, rank: int | None, line: str) -> None:
        self._show(stream, stream.noise.feed(line) if rank is None else stream.noise.of_rank(line), rank)

    def _show(self, stream: Stream, lines: Sequence[str], rank: int | None = None) -> None:
        child = stream.child
        for line in lines:
            if stream.kind == OUT and child.ends is not None and (before := child.ends.hear(line)) is not None:
                if not before.strip():
                    continue
                line = before  # noqa: PLW2901
            if stream.kind == ERR or not child.on_line(line):
                self._screen.line(child.name_of(rank), line, stream.kind)

    def _close(self, stream: Stream) -> None:
        self._selector.unregister(stream.pipe)
        for rank, line in stream.splitter.end():
            self._take(stream, rank, line)
        stream.pipe.close()

    def _finish(self, child: Child) -> None:
        """Kill the descendants of a process that has ended, show its last output, and report its status.

        Its pipes are read to their end, but only until a deadline, because a process that it left behind may hold them
        open.
        """
        self._forget_end(child)
        self._end_orphans(child.mark)
        end = time.monotonic() + _DRAIN_SECONDS
        while open_streams(child) and time.monotonic() < end:
            self._read_ready(_TICK_SECONDS)
        for stream in open_streams(child):
            self._close(stream)
        for stream in child.streams:
            self._show(stream, stream.noise.end())
        out, err = (stream.noise for stream in child.streams)
        child.first_rank, child.vanished, child.lost_host = err.first_rank, err.vanished, err.lost_host or out.lost_host
        child.lost_host = child.lost_host or (child.hosts if err.lost_some_host else "")
        status = _status(child.process.returncode, out.signal) or (FAILED if child.lost_host else 0)
        if child.ends is not None and child.first_rank is None and not child.lost_host:
            verdict = child.ends.judge(status, was_killed=child.process.returncode < 0)
            status, child.first_rank, child.vanished = verdict
        child.status = status
        self._screen.clear()
        self._on_end(child)

    def _forget_end(self, child: Child) -> None:
        if child.end is not None:
            with contextlib.suppress(KeyError):
                self._selector.unregister(child.end)
            os.close(child.end)
            child.end = None

    def _end_orphans(self, mark: str = "") -> None:
        """Kill what dead children left behind, and its descendants, which have become children of this process.

        `mark`: kill only those that were started with this `NAME=VALUE` in their environment.
        """
        mine = {self._keeper.pid, *(child.process.pid for child in self.running)}
        while orphans := [pid for pid in _children() if pid not in mine and _has(pid, mark)]:
            for pid in orphans:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)

    def close(self) -> None:
        """Release the file descriptors, and kill remaining descendants. The processes must have ended."""
        self._end_orphans()
        for child in self._children:
            self._forget_end(child)
            if child.process.stdin is not None:
                child.process.stdin.close()
            for stream in open_streams(child):
                with contextlib.suppress(OSError):
                    self._close(stream)
        self._selector.close()
        self._tell_keeper(keeper.DONE)
        with contextlib.suppress(OSError):
            self._keeper.communicate()

    def _tell_keeper(self, line: str) -> None:
        with contextlib.suppress(OSError):  # the keeper was killed
            os.write(self._keeper.stdin.fileno(), f"{line}\n".encode())  # type: ignore[union-attr]


def _kill_group(child: Child) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.process.pid, signal.SIGKILL)


def _has(pid: int, mark: str) -> bool:
    try:
        return not mark or mark.encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def _children() -> Iterator[int]:
    """Yield the ids of this process's children, including those that have ended and were not waited for."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            # "pid (name) state parent ...", and the name may have spaces and parentheses
            parent = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[1]
            if int(parent) == os.getpid():
                yield int(folder.name)


def _status(code: int, said: int | None) -> int:
    """Return the exit status as a shell counts it. MPICH's mpirun exits with the number of the signal that it named."""
    if code < 0:
        return 128 - code
    return 128 + code if code == said else code
