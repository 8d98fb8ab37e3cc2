"""What the step needs to know about its job."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from hybridps.config import Settings
from hybridps.events import EventLog
from hybridps.mpi_groups import Headcount, ServersView, Session
from hybridps.tracing import Recorder


@dataclass(frozen=True)
class JobContext:
    """The job as the step sees it.

    `watch(what)` is a context manager that reports a wait, described by `what`, that takes longer than the deadline.
    `what` may be a function, which is called only then.
    """

    settings: Settings
    worker: int
    groups: int
    events: EventLog
    watch: Callable[[str | Callable[[], str]], AbstractContextManager[None]]
    group: int = 0
    is_full: bool = False
    """As `Session.is_full`."""
    servers_view: ServersView = field(default_factory=ServersView)
    """What this rank knows of its servers."""
    headcount: Headcount = field(default_factory=lambda: Headcount(1, 1))
    """The numbers of groups and workers of the job, as the program sees them."""
    trace: Recorder = field(default_factory=Recorder)
    """What this worker records of its steps."""
    note: Callable[[str], None] = lambda message: None
    """Tells the user something, once in each group."""

    @staticmethod
    def of(session: Session) -> JobContext:
        """Return the context of a worker of this session."""
        place, groups = session.place, session.plan.groups
        return JobContext(
            session.settings,
            place.worker,
            groups,
            session.events,
            session.watchdog.watch,
            place.group,
            session.is_full,
            session.servers_view,
            session.headcount,
            session.trace,
            session.note,
        )

    @property
    def bucket_bytes(self) -> int:
        """The size of the gradients that are reduced at a time, in whole chunks."""
        return self.settings.bytes_reduced_at_a_time(self.is_full)

    @property
    def whole_tables(self) -> bool:
        """Whether the servers take whole keys only, as MXNet's own servers do. Each key is then a table of its own."""
        return self.settings.backend == "mxnet" and self.groups > 1
