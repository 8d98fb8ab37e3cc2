"""What the processes of a run say of themselves. Each file has the latest state only."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from hybridps.events import Evaluated

Count = Annotated[int, Meta(ge=0, le=1 << 62)]


class Status(msgspec.Struct, kw_only=True):
    """What every process says. `run`: equal in all processes of a run, and different in the next one."""

    run: str
    host: str
    pid: int
    started_at: float
    """Wall clock, in seconds since 1970."""
    seconds: float = 0.0
    """Since then, when this was written."""
    cpu_seconds: float = 0.0
    """CPU time of the process, of all its threads."""
    ended: bool = False
    """Whether the process came to its end in good order."""


class Report(msgspec.Struct, kw_only=True):
    """What a script has reported last (`report_progress`): of a worker, or of the job."""

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
        """What a script has reported."""
        return cls(**{field: getattr(event, field) for field in cls.__struct_fields__})


class WorkerStatus(Status, kw_only=True):
    """A worker: the totals since it started, and its pace in its latest steps. None: not known."""

    worker: Count
    workers: Count
    group: Count
    groups: Count
    group_rank: Count
    algorithm: str | None = None
    life: Count = 0
    """How often its group was started again before."""
    steps: Count = 0
    step_seconds: float | None = None
    """This and the next three: of a step, as of the event `Paced`."""
    own_seconds: float | None = None
    program_seconds: float | None = None
    waiting_seconds: float | None = None
    exchanges: Count = 0
    """Exchanges of weights."""
    exchange_seconds: float | None = None
    """What the last of them took."""
    skipped: Count = 0
    """Exchanges that were left out, as a server was away."""
    distance: float | None = None
    bytes_to_servers: Count = 0
    """Payload; where groups gossip, to other groups."""
    bytes_from_servers: Count = 0
    slow: str | None = None
    """Why it is slower than the others of its group, if it is: a word of `slow.REASONS`."""
    report: Report | None = None
    """What its script has reported last by `report_progress`."""
    factor: float = 1.0
    """How many times as long as the others it takes, if it is slow."""


class ServerStatus(Status, kw_only=True):
    """A server: totals since it started."""

    address: str
    life: Count = 0
    groups: Count = 0
    tables: Count = 0
    rounds: float = 0.0
    """Of the table that has most."""
    lag: float = 0.0
    """How many values the slowest group is behind, in the table where that is most."""
    backlog: Count = 0
    """Tasks that wait for a thread."""
    received_bytes: Count = 0
    sent_bytes: Count = 0
    refused: Count = 0
    memory_bytes: Count = 0
    """Of the tables."""


class GroupStatus(msgspec.Struct, kw_only=True):
    """A group as its launcher sees it."""

    number: Count
    size: Count
    running: bool
    restarts: Count = 0
    status: int | None = None
    """The exit status of its latest life, once that has ended."""


class LaunchStatus(Status, kw_only=True):
    """A launcher: the groups that it has started, and what their scripts report."""

    command: list[str]
    workers: Count
    groups: list[GroupStatus]
    servers: list[str]
    """Their names."""
    lost_servers: list[str] = []
    """Those of them that have ended."""
    run_folder: str | None = None
    reports: list[Report] = []
    slow: dict[int, str] = {}
    """The groups that are slower than the others, and why: words of `slow.REASONS`."""
    message: str = ""
    """The last thing that the launcher said."""
