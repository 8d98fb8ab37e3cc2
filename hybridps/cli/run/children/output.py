"""Shows the output of many processes on one screen: whole lines with a prefix."""

from __future__ import annotations

import io
import itertools
import os
import shutil
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
