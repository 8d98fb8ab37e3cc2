"""The folder of snapshots: which there are, which one a job starts from, and which are kept.

FOLDER/job-NAME/server-0-of-2/snapshot-NUMBER is a complete snapshot of what one of two servers has of a job; the name
of a tenant's job begins with that of the tenant and a plus sign. A number says when the snapshot was due, in
milliseconds since 1970: servers whose clocks agree take snapshots of equal numbers.
"""

from __future__ import annotations

import datetime
import itertools
import logging
import os
import re
import shutil
from functools import lru_cache
from pathlib import Path

from hybridps.errors import ServerError
from hybridps.ps.model import TableSpec
from hybridps.ps.server.snapshots.files import MARKER, Contents, DamagedError, FoundTable, read_contents, sync

log = logging.getLogger("hybridps.ps")

KEPT = 2
"""Complete snapshots that are kept, beside the newest one that all servers of the job have, and those that others
are still writing."""

_JOB, _SNAPSHOT, _PARTIAL, _OLD = "job-", "snapshot-", ".partial-", ".old-"

_read_contents = lru_cache(maxsize=4)(read_contents)
"""Every table of a job asks, and a complete snapshot never changes."""


class SnapshotFolder:
    """A folder of snapshots, which is made. Raises ServerError if it cannot be made or written to."""

    def __init__(self, path: str) -> None:
        self.path = Path(path).absolute()
        self._said: set[str] = set()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            problem = "" if os.access(self.path, os.W_OK | os.X_OK) else "it cannot be written to"
        except OSError as error:
            problem = error.strerror or str(error)
        if problem:
            raise ServerError(f"the folder of snapshots {self.path} cannot be used: {problem}")

    def of(self, job: str, server: int, servers: int) -> ServerFolder:
        """The snapshots of one server of a job."""
        return ServerFolder(self.path / (_JOB + job.replace("/", "+")), server, servers)

    def find(self, job: str, table: str, spec: TableSpec, number: int | None = None) -> FoundTable | None:
        """What a new table starts from: the table of this name and spec in the newest complete snapshot, if it has one.

        Without a `number` that is the newest one that all servers of the job have, as far as this server sees their
        folders. With one, the values must be of that snapshot: else ServerError. A folder that is no complete snapshot,
        and a table with another spec, are passed over with a line in the log.
        """
        place = self.of(job, spec.server, spec.servers)
        for each in reversed(place.numbers() if number is not None else place.common()):
            try:
                contents = place.contents(each)
            except DamagedError as damage:
                self._say(f"{damage}; it is passed over")
                continue
            found = next((it for it in enumerate(contents.tables) if it[1].name == table), None)
            if found is not None and found[1].spec != spec:
                self._say(f"table {table!r} of {place.path(each)} has another layout, rule or clock: it is not used")
                found = None
            if found is not None and number in (None, found[1].number):
                when = datetime.datetime.fromtimestamp(contents.written_at).isoformat(" ", "seconds")
                self._say(f"job {job!r} starts from its snapshot of {when}, {place.path(each)}")
                return FoundTable(place.path(each), *found, contents.written_at)
            if number is None:
                return None  # values of different snapshots are not mixed
        if number is None:
            return None
        raise ServerError(
            f"server {spec.server} of {spec.servers} has no values of snapshot {number} of table {table!r} in "
            f"{place.folder}, and the first server starts from that one: remove {_SNAPSHOT}{number} there, so that "
            "all servers start from an earlier one, or start the job under another name"
        )

    def _say(self, text: str) -> None:
        """Write a line to the log, once."""
        if text not in self._said:
            log.warning("%s", text)
            self._said.add(text)


class ServerFolder:
    """The snapshots of one server of a job, `server` of `servers`. Methods that write raise OSError."""

    def __init__(self, job: Path, server: int, servers: int) -> None:
        self.folder = job / f"server-{server}-of-{servers}"
        self._others = [job / f"server-{other}-of-{servers}" for other in range(servers) if other != server]

    def numbers(self) -> list[int]:
        """The numbers of the complete snapshots, ascending."""
        return sorted(_numbers(self.folder))

    def common(self) -> list[int]:
        """Those that the other servers have too, as far as their folders are seen here, ascending."""
        others = [_numbers(folder) for folder in self._others if folder.is_dir()]
        return sorted(_numbers(self.folder).intersection(*others))

    def path(self, number: int) -> Path:
        """Where the snapshot of that number is."""
        return self.folder / f"{_SNAPSHOT}{number}"

    def contents(self, number: int) -> Contents:
        """What that snapshot has. Raises DamagedError."""
        contents = _read_contents(self.path(number))
        if contents.number != number:
            raise DamagedError(f"{self.path(number)} has the number {contents.number}")
        return contents

    def begin(self, number: int) -> Path:
        """A new folder to write that snapshot in. What earlier ones have left unfinished is removed."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for pattern in (f"{_PARTIAL}*", f"{_OLD}*"):
            for path in self.folder.glob(pattern):
                shutil.rmtree(path)
        partial = self.folder / f"{_PARTIAL}{number}"
        partial.mkdir()
        return partial

    def end(self, number: int, partial: Path) -> None:
        """The snapshot in that folder has its marker: from here on it is complete. Those before it may go."""
        partial.rename(self.path(number))
        for folder in (self.folder, *itertools.islice(self.folder.parents, 2)):
            sync(folder)
        others = [_numbers(folder, _PARTIAL, "") for folder in self._others]
        kept = {*self.numbers()[-KEPT:], *self.common()[-1:]}.union(*others)
        for each in self.numbers():
            if each not in kept:
                old = self.folder / f"{_OLD}{each}"
                self.path(each).rename(old)  # so that none is ever there in parts
                shutil.rmtree(old)


def only_job(path: str) -> str | None:
    """The name of the one job that has snapshots in a folder, without its tenant; None if there is none, or several."""
    found = {folder.parents[1].name for folder in Path(path).glob(f"{_JOB}*/server-*-of-*/{_SNAPSHOT}*")}
    names = [name.removeprefix(_JOB).rpartition("+")[2] for name in found]
    return names[0] if len(names) == 1 and re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", names[0]) else None


def _numbers(folder: Path, begin: str = _SNAPSHOT, within: str = f"/{MARKER}") -> set[int]:
    """The numbers of the snapshots in a folder that have a marker, or of folders whose names begin otherwise."""
    found = (path.relative_to(folder).parts[0].removeprefix(begin) for path in folder.glob(f"{begin}*{within}"))
    return {int(name) for name in found if re.fullmatch("0|[1-9][0-9]{0,17}", name)}
