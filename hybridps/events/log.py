"""Writes events as JSON lines to the run folder. Reports and plots read them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from io import FileIO
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import msgspec

from hybridps.errors import ConfigError
from hybridps.events.kinds import Event
from hybridps.events.saying import say


class EventLog:
    """Writes the events of one rank to `<folder>/hybridps-<rank>.jsonl`, or nowhere if there is no folder.

    Every line is complete when `emit` returns, so the file is valid after a kill. A process that was killed while it
    wrote, or whose disk was full, may leave half a line at the end; the next log of that file continues below it.
    Events never end a job: if one cannot be written, for example because the disk is full, the log reports that once on
    standard error and drops all later ones.
    """

    def __init__(self, folder: str | Path | None, rank: int | str) -> None:
        """`rank`: the number of a worker, or the name of a server."""
        self.listen: Callable[[Event], None] = lambda event: None
        """Called with each event, even if there is no folder."""
        self._rank = rank
        self._began = time.monotonic()
        self._file: FileIO | None = None
        if folder is None:
            return
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
            self._file = FileIO(Path(folder) / f"hybridps-{rank}.jsonl", "ab+")
            self._end_half_line()
        except OSError as error:
            self._give_up(error)

    def emit(self, event: Event) -> None:
        """Write one event. Never raises OSError."""
        self.listen(event)
        if self._file is None:
            return
        line = msgspec.to_builtins(event) | {"rank": self._rank, "seconds": round(time.monotonic() - self._began, 6)}
        left = to_json(line) + b"\n"
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        """Close the file. Later events are dropped."""
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
            self._file = None

    def _end_half_line(self) -> None:
        """End half a line of an earlier process, so that the first line begins below it."""
        if self._file is not None and self._file.seek(0, os.SEEK_END):
            self._file.seek(-1, os.SEEK_END)
            if self._file.read(1) != b"\n":
                self._file.write(b"\n")

    def _give_up(self, error: OSError) -> None:
        self.close()
        who = f"worker {self._rank}" if isinstance(self._rank, int) else self._rank
        say(f"events of {who} can no longer be written: {error.strerror}")


def to_json(value: object) -> bytes:
    """Return a value as JSON. The bytes of commands and file names that are not UTF-8 are written like `\\xff`."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(_escaped(msgspec.to_builtins(value)))


def _escaped(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    if isinstance(value, dict):
        return {key: _escaped(part) for key, part in value.items()}
    return [_escaped(part) for part in value] if isinstance(value, (list, tuple)) else value


def check_run_folder(folder: str | None) -> bool:
    """Create a run folder if it does not exist. Returns whether it has events of an earlier launch.

    Raises ConfigError if no file can be created in it.
    """
    if folder is None:
        return False
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            return any(Path(folder).glob("hybridps-*.jsonl"))
    except OSError as error:
        reason = "it is a file; give a folder" if isinstance(error, FileExistsError) else error.strerror
        raise ConfigError(f"the run folder {folder!r} cannot be written: {reason}") from None
