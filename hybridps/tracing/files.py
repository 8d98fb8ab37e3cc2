"""The files of a process's trace: a new one and an older one, both of bounded size."""

from __future__ import annotations

import os
from contextlib import suppress
from io import FileIO
from pathlib import Path

import msgspec

from hybridps.events import say
from hybridps.tracing.records import Line


class TraceFile:
    """Writes lines to `<folder>/trace-<name>.jsonl`. Each is complete when `write` returns, so a kill damages none.

    When the file reaches half of `nbytes`, it becomes `trace-<name>.older.jsonl`, in place of an earlier one. The new
    file begins with the lines that were written with `stays`. Like events, a trace never ends a job: if the file cannot
    be written, that is reported once on standard error, and all later lines are dropped.
    """

    def __init__(self, folder: str | Path, name: str, nbytes: int) -> None:
        self._path = Path(folder) / f"trace-{name}.jsonl"
        self._older = self._path.with_name(f"trace-{name}.older.jsonl")
        self._half = nbytes // 2
        self._size = 0
        self._preface: list[bytes] = []
        self._file: FileIO | None = None
        self._encoder = msgspec.json.Encoder()
        self._open("ab")

    def write(self, line: Line, stays: bool = False) -> None:
        """Write one line. `stays`: whether every later file begins with it. Never raises OSError."""
        text = self._encoder.encode(line) + b"\n"
        if self._size + len(text) > self._half:
            self._turn_over()
        self._put(text)
        if stays:
            self._preface.append(text)

    def close(self) -> None:
        """Close the file. Later lines are dropped."""
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
            self._file = None

    def _open(self, mode: str) -> None:
        try:
            self._file = FileIO(self._path, mode)
            self._size = self._file.seek(0, os.SEEK_END)
            if self._size:
                self._put(b"\n")  # below half a line of a process that was killed
        except OSError as error:
            self._give_up(error)

    def _turn_over(self) -> None:
        if self._file is None:
            return
        self.close()
        try:
            os.replace(self._path, self._older)
        except OSError as error:
            self._give_up(error)
            return
        self._open("wb")
        for text in self._preface:
            self._put(text)

    def _put(self, text: bytes) -> None:
        left = memoryview(text)
        try:
            while left and self._file is not None:
                left = left[self._file.write(left) :]
        except OSError as error:
            self._give_up(error)
        self._size += len(text)

    def _give_up(self, error: OSError) -> None:
        self.close()
        say(f"{self._path} can no longer be written: {error.strerror}")
