"""The output of a launch in files: one for each worker, each server, and the launcher."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TextIO

from hybridps.cli.run.children.output import OUT, Screen
from hybridps.errors import ConfigError

LAUNCHER = "launcher"


class LogFiles:
    """Files in a folder, each with the lines of one name. Lines are appended to the files of an earlier launch."""

    def __init__(self, folder: Path) -> None:
        """Raise ConfigError if the folder cannot be written to."""
        self._folder = folder
        self._files: dict[str, TextIO] = {}
        self._began = datetime.now().isoformat(" ", "seconds")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._open(LAUNCHER)
        except OSError as error:
            raise ConfigError(f"--log-dir {str(folder)!r} cannot be used: {error.strerror or error}") from None

    def write(self, name: str, text: str) -> None:
        """Append a line. Raises OSError."""
        file = self._files.get(name) or self._open(name)
        file.write(f"{text}\n")
        file.flush()

    def _open(self, name: str) -> TextIO:
        path = self._folder / f"{name.replace(' ', '-')}.log"
        self._files[name] = file = path.open("a", errors="backslashreplace")
        if file.tell():
            file.write(f"hybridps: a launch of {self._began}\n")
        return file

    def close(self) -> None:
        for file in self._files.values():
            with suppress(OSError):  # what the full disk did not take was reported when it was written
                file.close()


class LoggedScreen(Screen):
    """A screen that also writes each line to the files. If that fails, it prints one message and continues without."""

    def __init__(
        self, out: TextIO, err: TextIO, names: Sequence[str], prefixes: Mapping[str, str] | None, files: LogFiles
    ) -> None:
        super().__init__(out, err, names, prefixes)
        self._files: LogFiles | None = files

    def line(self, name: str, text: str, kind: str = OUT) -> None:
        super().line(name, text, kind)
        if self._files is not None:
            try:
                self._files.write(name or LAUNCHER, text)
            except OSError as error:
                self._files = None
                self.message(f"the files of --log-dir can no longer be written: {error.strerror}")
