"""Reads the live folder of a run: the latest status of each of its processes."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

import msgspec

from hybridps.errors import ConfigError
from hybridps.live.files import LARGEST_BYTES, WRITE_SECONDS
from hybridps.live.folder import LIVE
from hybridps.live.status import LaunchStatus, Report, ServerStatus, Status, WorkerStatus

StatusT = TypeVar("StatusT", WorkerStatus, ServerStatus, LaunchStatus)

MOST_FILES = 20_000
"""The largest number of files of one kind. A folder with more was not written by a run."""


KILLED_SECONDS = 30.0
"""A launcher that has written nothing for so long was killed. Its process number may be that of another process."""


@dataclass(frozen=True)
class Seen(Generic[StatusT]):
    """A status, and the age of its file."""

    status: StatusT
    age_seconds: float


class Live(NamedTuple):
    """The processes of a run."""

    workers: dict[int, Seen[WorkerStatus]]
    servers: dict[str, Seen[ServerStatus]]
    """By address."""
    launch: Seen[LaunchStatus] | None

    @property
    def is_over(self) -> bool:
        """Whether the run is over, as its launcher has reported, or without one all of its workers."""
        if self.launch is not None:
            return self.launch.status.ended
        return bool(self.workers) and all(seen.status.ended for seen in self.workers.values())

    @property
    def has_failed(self) -> bool:
        """Whether any group has ended with an error or by a signal, as the launcher has reported."""
        return self.launch is not None and any(group.status for group in self.launch.status.groups)

    @property
    def groups(self) -> dict[int, list[WorkerStatus]]:
        """The workers of each group, by group number, in the order of their ranks."""
        found: dict[int, list[WorkerStatus]] = {}
        for _, seen in sorted(self.workers.items()):
            found.setdefault(seen.status.group, []).append(seen.status)
        return dict(sorted(found.items()))

    @property
    def steps(self) -> int:
        """The number of steps of the worker that has done most."""
        return max((seen.status.steps for seen in self.workers.values()), default=0)


def read_live(folder: Path) -> Live:
    """Return the processes of the latest run that wrote to the folder. Files that cannot be read are left out."""
    launches = [*_read(folder, "launcher.json", LaunchStatus)]
    workers = [*_read(folder, "worker-*.json", WorkerStatus)]
    servers = [*_read(folder, "server-*.json", ServerStatus)]
    launcher = [seen.status for seen in launches]
    known: list[Status] = [*launcher] or [*(seen.status for seen in workers), *(seen.status for seen in servers)]
    run = max(known, key=lambda status: status.started_at).run if known else ""

    def of_run(found: list[Seen[StatusT]]) -> list[Seen[StatusT]]:
        return [seen for seen in found if seen.status.run == run]

    return Live(
        {seen.status.worker: seen for seen in of_run(workers)},
        {seen.status.address: seen for seen in of_run(servers)},
        launches[0] if launches else None,
    )


def silent_seconds(seen: Seen[WorkerStatus] | Seen[ServerStatus], processes: int) -> float:
    """Return for how long a process that has not ended has written nothing; 0 if it writes as it should.

    `processes`: the number of processes that write.
    """
    late = 4 * max(WRITE_SECONDS, processes / 400) + 1.0
    return seen.age_seconds if not seen.status.ended and seen.age_seconds > late else 0.0


def is_gone(status: Status) -> bool:
    """Return whether a process of this host no longer exists, although it did not report its end."""
    if status.host != socket.gethostname():
        return False
    try:
        os.kill(status.pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


def check_unused(run_folder: str | None) -> None:
    """Raise ConfigError if another launch that is in progress on this host writes to the run folder."""
    for seen in _read(Path(run_folder, LIVE), "launcher.json", LaunchStatus) if run_folder is not None else ():
        status = seen.status
        is_here = status.host == socket.gethostname() and status.pid != os.getpid() and not is_gone(status)
        if is_here and not status.ended and seen.age_seconds < KILLED_SECONDS:
            raise ConfigError(
                f"the run folder {run_folder!r} belongs to a launch in progress (process {status.pid}): give this one "
                "another folder, or wait until that one has ended"
            )


def rate(before: Status | None, now: Status, field: str) -> float | None:
    """Return the increase of a total per second between two statuses of a process; None if it is not known."""
    if before is None or before.started_at != now.started_at or now.seconds <= before.seconds:
        return None
    return max(0.0, (getattr(now, field) - getattr(before, field)) / (now.seconds - before.seconds))


def steps_per_second(before: Live, now: Live) -> float | None:
    """Return the steps per second of the fastest worker; None if they are not known."""
    rates = []
    for worker, seen in now.workers.items():
        earlier = before.workers.get(worker)
        if earlier is not None and (found := rate(earlier.status, seen.status, "steps")) is not None:
            rates.append(found)
    return max(rates, default=None)


def report_of(live: Live, worker: int) -> Report | None:
    """Return the last report of a worker's script: the one that its launcher has, or else the one of the worker."""
    status = live.workers[worker].status
    reports = live.launch.status.reports if live.launch is not None else []
    own = (each for each in reports if each.worker == worker)
    of_group = (each for each in reports if each.worker is None and each.group == status.group)
    return next(own, None) or next(of_group, None) or status.report


def clock(seconds: float) -> str:
    """Return a duration as minutes and seconds, or with hours.

    >>> clock(75), clock(3725)
    ('1:15', '1:02:05')
    """
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _read(folder: Path, pattern: str, kind: type[StatusT]) -> Iterator[Seen[StatusT]]:
    now = time.time()
    for count, path in enumerate(sorted(folder.glob(pattern))):
        if count >= MOST_FILES:
            return
        try:
            with path.open("rb") as file:
                text = file.read(LARGEST_BYTES + 1)
            age = max(0.0, now - path.stat().st_mtime)
            yield Seen(msgspec.json.decode(text, type=kind), age)
        except (OSError, msgspec.DecodeError):  # it was removed meanwhile, or is not one of ours
            continue
