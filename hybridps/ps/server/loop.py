"""The server's loop: sockets and heartbeats. It never computes and never compiles: that is done by workers."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import zmq

from hybridps.config import Settings
from hybridps.errors import ServerError
from hybridps.ps import wire
from hybridps.ps.keys import AllowList
from hybridps.ps.server.admission import Accounts
from hybridps.ps.server.door import memory_of_host
from hybridps.ps.server.members import Members
from hybridps.ps.server.observer import Observer, Work
from hybridps.ps.server.service import MOST_BACKLOG, Service
from hybridps.ps.server.tables.jobs import Jobs
from hybridps.ps.server.tables.rack import MORE_ARRAYS, RackTable
from hybridps.ps.server.transport import Transport
from hybridps.ps.server.upstream import Parents
from hybridps.ps.server.workers import Workers

log = logging.getLogger("hybridps.ps")

_LONGEST_LAP_SECONDS = 0.05
"""A message that never ends wakes nobody: what it takes meanwhile is kept in memory."""
_MOST_THREADS = 4
"""Unless asked for: a few cores move all that the memory can."""


class Server:
    """Serves at `address` from construction on; `run` does the work.

    `threads` share the chunks (default: as many as cores, 4 at most), beside that of `run`, which talks to the groups.
    `cores` pins them.
    `lost_seconds`: a group without sign of life for so long is lost. `stop_after_groups`: end when so many
    groups came and none is there any more. `memory_bytes` bounds all tables together (default: what this
    host has).
    `check_finite`: sums of gradients with NaN or Inf are refused too; what groups share is never poisoned. `allowed`:
    only these tenants may connect, with their keys. `parents`: where this server's groups, a rack, meet other racks;
    the server closes them. `context`: of ZeroMQ, for addresses of inproc://; it stays open.
    Raises ServerError if the address cannot be used, or is beyond this host without keys and not `insecure`.
    """

    def __init__(
        self,
        address: str = "tcp://127.0.0.1:*",
        *,
        lost_seconds: float = 10.0,
        stop_after_groups: int | None = None,
        memory_bytes: int | None = None,
        largest_message_bytes: int = wire.LARGEST_CHUNK_BYTES,
        insecure: bool = False,
        threads: int | None = None,
        cores: Sequence[int] = (),
        check_finite: bool = False,
        allowed: AllowList | None = None,
        parents: Parents | None = None,
        context: Any = None,
    ) -> None:
        threads = threads or min(os.cpu_count() or 1, _MOST_THREADS)
        _check_cores(cores)
        self._lap_seconds = min(_LONGEST_LAP_SECONDS, lost_seconds / 4)
        self._parents = parents
        # Each connection is given to the thread that has fewest. An odd number: every other connection has heartbeats.
        options = {"largest_message_bytes": largest_message_bytes, "io_threads": 2 * threads + 1, "context": context}
        try:
            self._transport = Transport(address, allowed=allowed, insecure=insecure, **options)
        except BaseException:
            if parents is not None:
                parents.close()
            raise
        self.address = self._transport.address
        """Where clients find it, with the actual port."""
        in_rack: dict[str, Any] = {"make_table": RackTable, "more_arrays": MORE_ARRAYS} if parents is not None else {}
        memory_bytes = memory_of_host() if memory_bytes is None else memory_bytes
        self._jobs = Jobs(memory_bytes, threads, check_finite, **in_rack)
        self._members = Members(lost_seconds)
        self._accounts = Accounts(allowed, self._jobs.budget)
        self._workers = Workers(threads, cores)
        parts = self._transport, self._jobs, self._members, self._accounts, self._workers, parents
        self._service = Service(*parts, lost_seconds=lost_seconds, stop_after_groups=stop_after_groups)
        self._observer: Observer | None = None
        self._stopping = threading.Event()
        self._closing = threading.RLock()

    @classmethod
    def of(
        cls, settings: Settings, address: str, *, insecure: bool = False, stop_after_groups: int | None = None
    ) -> Server:
        """A server as the settings say. Raises ConfigError for keys that cannot be read, and as the constructor."""
        return cls(
            address,
            lost_seconds=settings.lost_seconds,
            stop_after_groups=stop_after_groups,
            insecure=insecure,
            threads=settings.server_threads,
            cores=settings.server_cores,
            check_finite=settings.check_finite == "refuse",
            allowed=AllowList.of(settings),
            parents=Parents.of(settings),
        )

    def run(self, until: Callable[[], bool] | None = None) -> None:
        """Serve until `stop` is called, `stop_after_groups` is reached, or `until()`, asked now and then, is true.

        Closes the server.
        """
        poller = zmq.Poller()
        self._transport.register(poller)
        self._workers.start()
        poller.register(self._workers.ready, zmq.POLLIN)
        if self._parents is not None:
            poller.register(self._parents.ready, zmq.POLLIN)
        try:
            while not self._stopping.is_set() and not self._service.finished and not (until and until()):
                events = poller.poll(math.ceil(1000 * min(self._lap_seconds, self._idle_seconds())))
                self._workers.begin_lap(any(ready == self._workers.ready for ready, _ in events))
                self._lap()
        finally:
            self.close()

    def _lap(self) -> None:
        self._transport.door.serve()
        self._members.heard(self._service.read_waiting(), self._transport.reads)
        self._service.drop_lost()
        self._service.serve_waiting()
        self._service.follow(self._workers.collect())
        self._service.hear_parents()
        if self._observer is not None:
            work = Work(self._workers.backlog, self._service.refused, self._transport.door.refused)
            self._observer.look(time.monotonic(), work)

    @property
    def refused(self) -> int:
        """Number of requests that were refused."""
        return self._service.refused

    def observe(self) -> Observer:
        """Have snapshots made while it runs."""
        self._observer = Observer(self._accounts, self._members, self._jobs, self._workers.count)
        return self._observer

    def stop(self) -> None:
        """End `run` soon. May be called from any thread, and from a signal handler."""
        with self._closing:
            self._stopping.set()
            self._transport.wake()

    def close(self) -> None:
        """Release the address. Only when `run` does not run; a second time does nothing."""
        with self._closing:
            if self._transport.closed:
                return
            self._workers.close()
            if self._parents is not None:
                self._parents.close()
            self._transport.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _idle_seconds(self) -> float:
        """How long there is nothing to do if nothing comes."""
        if self._workers.has_done:
            return 0.0
        if self._workers.backlog >= MOST_BACKLOG:
            return math.inf
        return self._service.queue.rest_seconds(time.monotonic())


def _check_cores(cores: Sequence[int]) -> None:
    if not set(cores) <= os.sched_getaffinity(0):
        usable = ", ".join(map(str, sorted(os.sched_getaffinity(0))))
        raise ServerError(f"threads cannot be pinned to the cores {list(cores)}: this process may use {usable}")
