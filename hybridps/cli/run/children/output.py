"""Shows the output of many processes on one screen: whole lines with a prefix, without the noise of mpirun."""

from __future__ import annotations

import io
import itertools
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TextIO

OUT = "out"
ERR = "err"

LONGEST_LINE = 1 << 20
"""The length at which a line is shown although it has not ended."""

_STYLES = ("cyan", "green", "magenta", "yellow", "blue", "bright_cyan", "bright_green", "bright_magenta")
_WIPE = "\r\x1b[2K"


class LineSplitter:
    """Splits the bytes of a stream into lines.

    A progress bar rewrites its line: text before a carriage return is overwritten, and only
    `transient` shows it. NUL bytes, which an MPI library may leave behind, are dropped.
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[str]:
        """Yield the lines that these bytes complete, without line ends."""
        *lines, rest = (self._rest + data.replace(b"\0", b"")).split(b"\n")
        overwritten = rest.rstrip(b"\r").rfind(b"\r")
        self._rest = rest[max(overwritten, 0) :]
        yield from map(_text, lines)
        if len(self._rest) > LONGEST_LINE:
            yield from self.end()

    def end(self) -> Iterator[str]:
        """Yield the last line, if it did not end."""
        rest, self._rest = self._rest, b""
        text = _text(rest)
        if text.strip():
            yield text

    @property
    def transient(self) -> str:
        """The current text of a line that rewrites itself, such as a progress bar."""
        return _text(self._rest) if b"\r" in self._rest else ""


class NoiseFilter:
    """Drops mpirun's messages about ranks that ended, which the launcher reports itself, once.

    Open MPI writes blocks of lines between two lines of dashes. On standard output, MPICH and Intel MPI write an empty
    line and a block between two lines of equals signs, and some single lines. A block is held back until it is
    complete, or for `HOLD_SECONDS` or `HELD_LINES` lines; a block of another kind is then passed on unchanged. Blocks
    in dashes are examined only with `blocks`, empty lines only without it, and blocks in equals signs only if their
    first line is MPICH's.
    """

    HELD_LINES = 40
    HOLD_SECONDS = 1.0

    def __init__(self, *, blocks: bool = True) -> None:
        self.first_rank: int | None = None
        """The rank that ended first, if mpirun named one."""
        self.signal: int | None = None
        """The signal that ended a rank, if mpirun reported one."""
        self.vanished = False
        """Whether a rank exited, perhaps with status 0, without calling MPI_Finalize."""
        self.lost_host = ""
        """The host that mpirun cannot reach, or can no longer reach; empty if it named none."""
        self.lost_some_host = False
        """Whether mpirun said that it cannot reach a host, and did not name it."""
        self._blocks = blocks
        self._held: list[str] = []
        self._before = ""
        """What a rank had printed of a line in which the held block begins."""
        self._holds_blank = False
        """Whether an empty line is held, before the block if there is one."""
        self._since = 0.0
        self._after_noise = False
        self._daemon_failed = False

    def feed(self, line: str) -> list[str]:
        """Return the lines to show after this line."""
        self._look_for_host(line)
        if not self._held:
            return ([] if _EQUALS.fullmatch(line) else self.end()) + self._outside(line)
        end = _DASHES
        if _EQUALS.fullmatch(self._held[0]):
            if len(self._held) == 1 and not _MPICH.match(line):
                return self.end() + self._outside(line)
            end = _EQUALS
        self._held.append(line)
        if end.fullmatch(line):
            return self._complete()
        return self.end() if len(self._held) > self.HELD_LINES else []

    def _look_for_host(self, line: str) -> None:
        """Note the host of a daemon that failed. mpirun names it on standard output, some lines after it says so."""
        if line.startswith("A daemon failed to report back"):
            self._daemon_failed = True
        elif self._daemon_failed and (named := _REMOTE_HOST.match(line)):
            self.lost_host, self._daemon_failed = named["host"], False
        elif named := _NO_PROXY.match(line):
            self.lost_host, self.lost_some_host = named["host"] or "", named["host"] is None

    def tick(self) -> list[str]:
        """Return the lines that were held for too long."""
        return self.end() if time.monotonic() - self._since > self.HOLD_SECONDS else []

    def end(self) -> list[str]:
        """Return the lines that are still held."""
        held, self._held = self._held, []
        if held and self._before:
            held[0], self._before = self._before + held[0], ""
        blank, self._holds_blank = self._holds_blank, False
        return ["", *held] if blank else held

    def _outside(self, line: str) -> list[str]:
        if self._blocks and (joined := _JOINED.fullmatch(line)):
            self._held, self._since, self._before = [joined["dashes"]], time.monotonic(), joined["line"]
            return []
        if (self._blocks and _DASHES.fullmatch(line)) or _EQUALS.fullmatch(line):
            self._held, self._since = [line], time.monotonic()
            return []
        if not (self._blocks or line.strip() or self._after_noise):
            self._holds_blank, self._since = True, time.monotonic()
            return []
        if said := _SIGNAL.match(line):
            self.signal = int(said["signal"])
        if self._blocks and self.first_rank is None and (aborted := _ABORTED.match(line)):
            self.first_rank = int(aborted["rank"])
        noise = _NOISE_LINE.match(line) is not None or (self._after_noise and not line.strip())
        self._after_noise = noise
        return [] if noise else [line]

    def _complete(self) -> list[str]:
        text = " ".join(line.strip() for line in self._held[1:-1]).strip()
        if _EQUALS.fullmatch(self._held[0]):
            self._after_noise, self._holds_blank = True, False
        elif lost := _LOST.match(text):
            self.lost_host = lost["host"]
        elif not _NOISE_BLOCK.match(text):
            return self.end()
        else:
            self.vanished = self.vanished or _VANISHED.search(text) is not None
            if self.first_rank is None and (named := _RANK.search(text)):
                self.first_rank = int(named["rank"] or named["last"])
        before, self._before, self._held = self._before, "", []
        return [before] if before else []


class Screen:
    """Standard output and standard error of the launcher, on a terminal or not.

    `names` are those of the children. `prefixes`: for some of them, the text in brackets before their lines in place of
    the name; empty for no prefix.
    """

    def __init__(
        self, out: TextIO, err: TextIO, names: Sequence[str], prefixes: Mapping[str, str] | None = None
    ) -> None:
        for sink in (out, err):
            if isinstance(sink, io.TextIOWrapper):
                sink.reconfigure(errors="backslashreplace")  # the terminal's encoding may lack what a child writes
        self._sinks = {OUT: out, ERR: err}
        self._terminal = {kind: sink.isatty() for kind, sink in self._sinks.items()}
        shown = {name: (prefixes or {}).get(name, name) for name in names}
        self._shown = {name: f"[{text}] " if text else "" for name, text in shown.items()}
        self._prefixes = {kind: _coloured(sink, self._shown) for kind, sink in self._sinks.items()}
        self._transient = ""
        self._transient_of = ("", "")
        self._bar = ""
        """The child's part of the transient line; the job's part stands before it."""
        self._job = ""
        self.said = ""
        """The last message of the launcher."""

    @property
    def shows_bars(self) -> bool:
        """Whether transient lines are shown."""
        return self._terminal[ERR]

    def line(self, name: str, text: str, kind: str = OUT) -> None:
        """Print a line of a child on standard output or, with `ERR`, standard error."""
        wipe = _WIPE if self._transient and self._terminal[kind] else ""
        prefix = self._prefixes[kind][name] if name else ""
        self._emit(kind, f"{wipe}{prefix}{text}\n")
        if self._transient:
            self._emit(ERR, _WIPE + self._transient)

    def transient(self, name: str, text: str, kind: str = OUT) -> None:
        """Show a line that the child will rewrite, or remove it if `text` is blank; on a terminal only.

        There is one bar for the job: those of other children are not shown until the first child has removed its own.
        """
        if not self.shows_bars or (self._bar and self._transient_of != (name, kind)):
            return
        if text.strip():
            self._bar, self._transient_of = f"{self._shown[name]}{text}", (name, kind)
            self._rewrite()
        elif self._transient_of == (name, kind):
            self._bar, self._transient_of = "", ("", "")
            self._rewrite()

    def show_job(self, text: str) -> None:
        """Show the progress of the job in the transient line; on a terminal only."""
        if self.shows_bars and text != self._job:
            self._job = text
            self._rewrite()

    def _rewrite(self) -> None:
        line = "  ".join(filter(None, [self._job, self._bar]))
        self._transient = line[: shutil.get_terminal_size().columns - 1]
        self._emit(ERR, _WIPE + self._transient)

    def message(self, text: str) -> None:
        """Print a message of the launcher on standard error."""
        self.said = text
        self.line("", f"hybridps: {text}", ERR)

    def _emit(self, kind: str, text: str) -> None:
        sink = self._sinks[kind]
        try:
            sink.write(text)
            sink.flush()
        except OSError as error:  # `hybridps run ... | head`, or a full disk: the job continues without output
            self._sinks[kind] = discard(sink)
            self._terminal[kind] = False
            if kind == OUT and not isinstance(error, BrokenPipeError):
                self.message(f"the job's output can no longer be written: {error.strerror}")

    def clear(self) -> None:
        """Remove the transient line until there is a new one."""
        if self._transient:
            self._transient = self._bar = self._job = ""
            self._transient_of = ("", "")
            self._emit(ERR, _WIPE)


def discard(sink: TextIO) -> TextIO:
    """Return a sink for what follows, which goes nowhere: the same one if it has a descriptor.

    What the sink has not written yet goes nowhere too, or else Python would try to write it at the end of the process.
    """
    nowhere = open("/dev/null", "w")  # noqa: SIM115
    try:
        os.dup2(nowhere.fileno(), sink.fileno())
    except OSError:  # it has none
        return nowhere
    nowhere.close()
    return sink


def _coloured(sink: TextIO, plain: Mapping[str, str]) -> Mapping[str, str]:
    """Return the prefixes of the children's lines, coloured if the terminal has colours."""
    if not sink.isatty():
        return plain
    from rich.color import ColorSystem
    from rich.console import Console
    from rich.style import Style

    console = Console(file=sink)
    if console.color_system is None or console.no_color:
        return plain
    styles = dict(zip(plain, itertools.cycle(_STYLES)))  # noqa: B905
    return {
        name: Style.parse(styles[name]).render(text.rstrip(), color_system=ColorSystem.STANDARD) + text[-1:]
        for name, text in plain.items()
    }


def _text(line: bytes) -> str:
    """Return what a terminal would show of a line with carriage returns."""
    return line.rstrip(b"\r").rpartition(b"\r")[2].decode("utf-8", errors="replace")


_DASHES = re.compile(r"-{60,}")
_JOINED = re.compile(r"(?P<line>.*[^-])(?P<dashes>-{74})")
"""A rank's line that has not ended when Open MPI prints its dashes."""

_EQUALS = re.compile(r"={79,}")
_MPICH = re.compile(r"=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES")
_NOISE_LINE = re.compile(
    r"Abort is in progress\.\.\.hit ctrl-c again"
    r"|YOUR APPLICATION TERMINATED WITH THE EXIT S"
    r"|This typically refers to a problem with your application\.$"
    r"|Please see the FAQ page for debugging suggestions$"
    r"|Abort\(\d+\) on node \d+ \(rank \d+ in comm \d+\): application called MPI_Abort\("
)
_ABORTED = re.compile(r"Abort\(\d+\) on node (?P<rank>\d+) \(rank \d+ in comm \d+\): application called MPI_Abort\(")
_SIGNAL = re.compile(r"YOUR APPLICATION TERMINATED WITH THE EXIT STRING: .*\(signal (?P<signal>\d+)\)$")
_NOISE_BLOCK = re.compile(
    r"\w+run noticed that process rank"
    r"|\w+run detected that one or more processes exited with non-zero status"
    r"|\w+run has exited due to process rank \d+ with PID \d+ on\s+node \S+ (calling \"abort\"|exiting\s+improperly)"
    r"|MPI_ABORT was invoked on rank"
    r"|Primary job\s+terminated normally, but"
)
_LOST = re.compile(r"[OP]RTE has lost communication with a remote daemon\..*Remote daemon: \S+ on node (?P<host>\S+)")
_REMOTE_HOST = re.compile(r"\s*Remote host:\s+(?P<host>\S+)$")
_NO_PROXY = re.compile(r"\[mpiexec@.*(Unable to run bstrap_proxy on (?P<host>\S+) |Launch proxy failed\.$)")
"""Intel MPI names the host, and MPICH does not."""
_VANISHED = re.compile(r"exiting\s+improperly")
_RANK = re.compile(r"(?:process rank|invoked on rank) (?P<rank>\d+)|Process name:\s+\[\S+,(?P<last>\d+)\]")
