"""What the processes of a run say of themselves. Each file has only the latest state."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from hybridps.events import Evaluated

Count = Annotated[int, Meta(ge=0, le=1 << 62)]

STILL_SECONDS = 5.0
"""A worker that has begun no step for so long stands still, if that is also longer than `STILL_STEPS` of its steps."""

STILL_STEPS = 10


class Status(msgspec.Struct, kw_only=True):
    """What every process says. `run`: the same in all processes of a run, and another one in the next run."""

    run: str
    host: str
    pid: int
    started_at: float
    """The wall-clock time, in seconds since 1970."""
    seconds: float = 0.0
    """The time since then, when this was written."""
    cpu_seconds: float = 0.0
    """The CPU time of the process, of all its threads."""
    ended: bool = False
    """Whether the process ended in good order."""


class Report(msgspec.Struct, kw_only=True):
    """The last report of a script (`report_progress`), about a worker or about the job."""

    worker: Count | None = None
    group: Count | None = None
    epoch: float = 0.0
    step: Count | None = None
    loss: float | None = None
    accuracy: float | None = None
    centre_accuracy: float | None = None
    images: Count | None = None

    @classmethod
    def of(cls, event: Evaluated) -> Report:
        """Return the report that an event has."""
        return cls(**{field: getattr(event, field) for field in cls.__struct_fields__})


class WorkerStatus(Status, kw_only=True):
    """A worker: its totals since it started, and its pace in its latest steps. None: not known."""

    worker: Count
    workers: Count
    group: Count
    groups: Count
    group_rank: Count
    algorithm: str | None = None
    is_crowded: bool = False
    """Whether its host has more workers than cores."""
    life: Count = 0
    """How often its group was restarted before."""
    steps: Count = 0
    still_seconds: float = 0.0
    """The time since `steps` last changed."""
    waits_for: str | None = None
    """What it waits for in the meantime; None if it waits for no other process."""
    paces: Count = 0
    """The number of `Paced` events."""
    step_seconds: float | None = None
    """The medians of the latest of them: this, and the next three."""
    own_seconds: float | None = None
    program_seconds: float | None = None
    waiting_seconds: float | None = None
    mean_own_seconds: float | None = None
    """The mean of the same event."""
    exchanges: Count = 0
    """The number of exchanges of weights."""
    exchange_seconds: float | None = None
    """The duration of the last of them."""
    skipped: Count = 0
    """The number of exchanges that were left out because a server was away."""
    distance: float | None = None
    bytes_to_servers: Count = 0
    """The payload sent to servers or, where groups gossip, to other groups."""
    bytes_from_servers: Count = 0
    delayed_seconds: float = 0.0
    """How long threads of its process were ready and waited for a core, by the thread that waited most in each write of
    this status; 0 where the system does not count it."""
    slow: str | None = None
    """Why it is slower than the others of its group, if it is: one of `slow.REASONS`."""
    report: Report | None = None
    """The last report of its script (`report_progress`)."""
    factor: float = 1.0
    """How many times as long as the others it takes, if it is slow."""

    @property
    def is_still(self) -> bool:
        """Whether it has begun no step for much longer than its steps take."""
        return self.still_seconds > max(STILL_SECONDS, STILL_STEPS * (self.step_seconds or 0.0))

    @property
    def began_step_at(self) -> float:
        """About when it began its last step, in seconds since 1970."""
        return self.started_at + self.seconds - self.still_seconds


class ServerStatus(Status, kw_only=True):
    """A server: its totals since it started."""

    address: str
    life: Count = 0
    groups: Count = 0
    tables: Count = 0
    rounds: float = 0.0
    """The number of rounds of the table that has most."""
    lag: float = 0.0
    """How many values the slowest group is behind, in the table where that is most."""
    backlog: Count = 0
    """The number of tasks that wait for a thread."""
    received_bytes: Count = 0
    sent_bytes: Count = 0
    refused: Count = 0
    memory_bytes: Count = 0
    """The memory of the tables."""


class GroupStatus(msgspec.Struct, kw_only=True):
    """A group as its launcher sees it."""

    number: Count
    size: Count
    running: bool
    restarts: Count = 0
    status: int | None = None
    """The exit status of its latest life, once that life has ended."""


class LaunchStatus(Status, kw_only=True):
    """A launcher: the groups that it has started, and what their scripts report."""

    command: list[str]
    workers: Count
    groups: list[GroupStatus]
    servers: list[str]
    """The names of the servers."""
    lost_servers: list[str] = []
    """The names of those that have ended."""
    run_folder: str | None = None
    reports: list[Report] = []
    slow: dict[int, str] = {}
    """The groups that are slower than the others, and why: one of `slow.REASONS`."""
    message: str = ""
    """The last message of the launcher."""
    signal: str | None = None
    """The signal that it was told to end with, such as `SIGINT`."""
