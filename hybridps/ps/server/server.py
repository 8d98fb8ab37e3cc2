"""A parameter server in this process."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import zmq

from hybridps.config import Settings
from hybridps.ps.keys import AllowList
from hybridps.ps.server.admission import Accounts
from hybridps.ps.server.door import Gatekeeper
from hybridps.ps.server.launchers import EndedGroup, OnGroups
from hybridps.ps.server.loop import Loop
from hybridps.ps.server.members import Members
from hybridps.ps.server.snapshots import SnapshotFolder, Snapshots
from hybridps.ps.server.tables.images import KeptJobs
from hybridps.ps.server.tables.jobs import Jobs
from hybridps.ps.server.tables.rack import RackTable
from hybridps.ps.server.tables.table import Table
from hybridps.ps.server.transport import Transport
from hybridps.ps.server.upstream import Parents
from hybridps.ps.server.workers import Workers

if TYPE_CHECKING:
    from hybridps.ps.server.kept import KeptMemory
    from hybridps.ps.server.metrics import Observer

_PATIENCE = 0.9
"""The part of `deadline_seconds` after which a group that others wait for is lost, before they reach their deadline."""

_MOST_THREADS = 4
"""The default limit of threads. A few cores can use all of the memory's bandwidth."""


class Server:
    """A server that listens at `address` from construction on; `run` does the work.

    `threads` share the chunks (default: as many as cores, at most 4), besides the thread of `run`, which talks to the
    groups; `cores` pins them. `memory_bytes` bounds all tables (default: the memory of this host). `context`: a ZeroMQ
    context to use, for addresses of inproc://; it stays open.

    Groups: one without a sign of life for `lost_seconds` is lost; while no group of its job gives any, only after
    `reconnect_seconds`. One that asks for nothing for `patience_seconds`, while others of its job wait, is lost too.
    `stop_after_groups`: end when so many groups have come and all have gone.

    `check_finite`: refuse sums of gradients with NaN or Inf too; values that groups share are never poisoned.
    `allowed`: only these tenants may connect, with their keys. `parents`: the servers where this server's groups, a
    rack, exchange with other racks; the server closes them. `kept`: memory that outlives this process; a server
    continues from what an earlier process has left there. `snapshots`: a folder for snapshots of the tables, from which
    jobs start, with one snapshot every `snapshot_seconds`; not with parents.

    Raises ServerError if the address cannot be used, or is beyond this host without keys and not `insecure`.
    """

    def __init__(
        self,
        address: str = "tcp://127.0.0.1:*",
        *,
        lost_seconds: float = 10.0,
        reconnect_seconds: float = 0.0,
        stop_after_groups: int | None = None,
        memory_bytes: int | None = None,
        insecure: bool = False,
        threads: int | None = None,
        cores: Sequence[int] = (),
        check_finite: bool = False,
        allowed: AllowList | None = None,
        parents: Parents | None = None,
        context: Any = None,
        kept: KeptMemory | None = None,
        snapshots: str | None = None,
        snapshot_seconds: float = 60.0,
        patience_seconds: float = math.inf,
    ) -> None:
        threads = threads or min(os.cpu_count() or 1, _MOST_THREADS)
        with ExitStack() as resources:
            if parents is not None:
                resources.callback(parents.close)
            # A connection goes to the thread with the fewest. The number is odd, as every other one has heartbeats.
            door = Gatekeeper(address, allowed, insecure, 2 * threads + 1, context)
            resources.callback(door.close)
            workers = Workers(threads, cores)
            resources.callback(workers.close)
            taken = None if snapshots is None else Snapshots(SnapshotFolder(snapshots), snapshot_seconds, workers.wake)
            if taken is not None:
                resources.callback(taken.close)
            self._resources = resources.pop_all()
        self.address: str = door.socket.getsockopt_string(zmq.LAST_ENDPOINT)
        """Where clients find the server, with the actual port."""
        kept_jobs, life = (None, 0) if kept is None else (KeptJobs(kept), kept.life)
        folder = None if taken is None else taken.folder
        make_table, longest = (Table, reconnect_seconds) if parents is None else (RackTable, 0.0)  # other racks wait
        memory_bytes = _host_memory_bytes() if memory_bytes is None else memory_bytes
        jobs = Jobs(memory_bytes, threads, check_finite, make_table, kept_jobs, folder)
        accounts = Accounts(allowed, jobs.budget)
        members = Members(lost_seconds, jobs, kept, patience_seconds, longest)
        members.restore(accounts.of_job, time.monotonic())
        self._loop = Loop(Transport(door), jobs, members, accounts, workers, parents, taken, life, stop_after_groups)
        self._closing = threading.RLock()

    @classmethod
    def of(
        cls,
        settings: Settings,
        address: str,
        *,
        insecure: bool = False,
        stop_after_groups: int | None = None,
        allowed: AllowList | None = None,
        kept: KeptMemory | None = None,
    ) -> Server:
        """Make a server from the settings. Raises ConfigError for unreadable keys, and the constructor's errors.

        `allowed`: the keys that the settings name, if they were read before.
        """
        return cls(
            address,
            lost_seconds=settings.lost_seconds,
            reconnect_seconds=settings.longest_away_seconds,
            stop_after_groups=stop_after_groups,
            insecure=insecure,
            threads=settings.server_threads,
            cores=settings.server_cores,
            check_finite=settings.check_finite == "refuse",
            allowed=allowed or AllowList.of(settings),
            parents=Parents.of(settings),
            kept=kept,
            snapshots=settings.snapshots,
            snapshot_seconds=settings.snapshot_seconds,
            patience_seconds=_PATIENCE * settings.deadline_seconds,
        )

    def run(self) -> None:
        """Serve until `stop` is called, or `stop_after_groups` is reached. Closes the server."""
        with self:
            self._loop.run()

    def observe(self) -> Observer:
        """Return an observer that reads the counters while the server runs."""
        from hybridps.ps.server.metrics import Observer  # loads the library of Prometheus

        if self._loop.observer is None:
            self._loop.observer = Observer(self._loop)
        return self._loop.observer

    def stop(self) -> None:
        """End `run` soon. Any thread and a signal handler may call this."""
        with self._closing:
            self._loop.stopping = True
            self._loop.workers.wake()

    def note_done(self, job: str, epoch: float, step: int) -> None:
        """Note the progress of a job, as its launcher knows it. Any thread may call this."""
        with self._closing:
            self._loop.launchers.done[job] = epoch, step
            self._loop.workers.wake()

    def say_groups(self, say: OnGroups) -> None:
        """Call `say` when the groups of a job change, and for jobs that an earlier process has left."""
        self._loop.launchers.on_groups = say

    def end_group(self, job: str, group: int, returns: bool = False, life: int = 0) -> None:
        """Take a group as lost once its messages are read, because its processes have ended. Any thread may call this.

        `job` is its name at this server, with its tenant if there are keys. A group that is not there is ignored.
        `returns`: it is started again, so that its tables are kept even if all others leave meanwhile. `life`: how
        often it was started again before; the call is ignored if a later life has come.
        """
        with self._closing:
            self._loop.launchers.ended.append(EndedGroup(job, group, returns, life))
            self._loop.workers.wake()

    def expect_ends(self) -> None:
        """Promise that `end_group` is called for each group of a job that ends, even if it has never come.

        A job then stays until the last of its groups has come, and the others do not wait for one that ended before.
        Call this before `run`.
        """
        self._loop.jobs.told_ends = True

    def close(self) -> None:
        """Release the address. Call this only while `run` does not run. A second call does nothing."""
        with self._closing:
            self._resources.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _host_memory_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
