"""Where the status files of a run lie, and how other programs find the run.

If the run has a run folder, they lie in its folder `live`. Otherwise they lie in a folder of the run below
`runs_folder`, which is the user's own. Each run also has an entry there, so that `hybridps top` finds the newest run
without an argument. The process that has made an entry removes it at its end, and the next run removes the entries of
processes that were killed.
"""

from __future__ import annotations

import os
import shutil
import socket
import stat
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from hybridps.errors import ConfigError

LIVE = "live"
"""The name of the live folder in a run folder."""


class LiveFolder:
    """The live folder of a run, made by the run's first process.

    `run_folder`: the folder of the run, if it has one. Raises OSError if nothing can be written there.
    """

    def __init__(self, run_folder: str | None) -> None:
        path = None if run_folder is None else Path(run_folder).absolute() / LIVE
        if path is not None:
            path.mkdir(parents=True, exist_ok=True)
            for old in path.glob("*.json"):
                old.unlink(missing_ok=True)
        try:
            self.entry = _enter(path)
        except FileNotFoundError:  # the last other run removed the folder at this moment
            self.entry = _enter(path)
        self.path = path or self.entry

    def close(self) -> None:
        """Remove the entry. The files in a run folder stay."""
        _remove(self.entry)
        with suppress(OSError):  # other runs may still use it
            self.entry.parent.rmdir()


def runs_folder() -> Path:
    """Return this user's own folder for the runs on this host. Raises OSError if another user has made it."""
    path = Path(tempfile.gettempdir(), f".hybridps-{os.getuid()}")
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(13, f"{path} is not a folder of this user alone")
    return path


def find_live(run: str | None) -> Path:
    """Return the live folder of a run folder, or of the newest run on this host. Raises ConfigError without one."""
    if run is not None:
        for path in (Path(run, LIVE), Path(run)):
            if any(path.glob("worker-*.json")) or (path / "launcher.json").exists():
                return path
        raise ConfigError(
            f"{run} has no folder `{LIVE}` that a run has written: give the folder of `hybridps run --run FOLDER`, or "
            "the address HOST:PORT of a server's metrics"
        )
    try:
        runs = runs_folder()
    except OSError as error:
        raise ConfigError(f"runs of this user cannot be found: {error.strerror}; give the run folder") from None
    for entry in sorted(runs.iterdir(), reverse=True):
        if _owner_lives(entry) and entry.exists():
            return entry.resolve()
    raise ConfigError("no run of this user is in progress on this host: give a folder: `hybridps top runs/mine`")


def other_runs(live: Path) -> list[Path]:
    """Return the folders, for `find_live`, of this user's runs in progress on this host, without the one in `live`.

    The newest comes first. Entries that cannot be read are left out, as are those of other hosts and containers: their
    processes may have ended.
    """
    found = []
    with suppress(OSError):
        for entry in sorted(runs_folder().iterdir(), reverse=True):
            with suppress(OSError):
                path = entry.resolve()
                if _host_of(entry) == socket.gethostname() and _owner_lives(entry) and path.exists() and path != live:
                    found.append(path.parent if path.name == LIVE else path)
    return found


def _enter(path: Path | None) -> Path:
    """Make an entry for a run: a link to its live folder, or that folder itself."""
    runs = runs_folder()
    _remove_dead(runs)
    entry = runs / f"{time.time_ns():020d}-{socket.gethostname()}-{os.getpid()}"
    if path is None:
        entry.mkdir(mode=0o700)
    else:
        entry.symlink_to(path)
    return entry


def _remove_dead(runs: Path) -> None:
    for entry in runs.iterdir():
        if not _owner_lives(entry):
            _remove(entry)


def _owner_lives(entry: Path) -> bool:
    """Return whether the process that made an entry runs. One of another host or container counts as running."""
    number = entry.name.rpartition("-")[2]
    if not number.isdecimal():
        return False
    if _host_of(entry) != socket.gethostname():
        return True
    try:
        os.kill(int(number), 0)
    except (ProcessLookupError, PermissionError, OverflowError):
        return False
    return True


def _host_of(entry: Path) -> str:
    return entry.name.rpartition("-")[0].partition("-")[2]


def _remove(entry: Path) -> None:
    with suppress(OSError):
        if entry.is_symlink():
            entry.unlink()
        else:
            shutil.rmtree(entry, ignore_errors=True)
