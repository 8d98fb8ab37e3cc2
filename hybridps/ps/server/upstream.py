"""The connection of a rack server with its parents: for each job, a thread with a client.

The server's own loop never waits for the parents. It hands over requests, and collects what is back.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import msgspec

from hybridps.codecs import Quantised
from hybridps.config import Settings
from hybridps.errors import ConfigError, HybridPSError, LayoutError, ServerError
from hybridps.ps.client.client import Client
from hybridps.ps.client.operations import Operation, OperationSequence
from hybridps.ps.model import Joining, ParentRequest
from hybridps.ps.rules.finite import NotFiniteError

log = logging.getLogger("hybridps.ps")

_CLOSE_SECONDS = 3.0
"""The longest time for all links together to leave."""

_Back = tuple["_Link", ParentRequest | None, HybridPSError | None]
"""A completed request, with an error if the parents refused its values. Without a request, the link has failed."""


class Parents:
    """The parents of one rack server, at `addresses`. To them the rack is group `rack` of `racks`.

    `settings` have the deadlines, and the keys if the parents demand some. `ready` is a descriptor that can be read
    when `collect` has something. The loop's thread calls the methods.
    """

    def __init__(self, addresses: tuple[str, ...], rack: int, racks: int, settings: Settings) -> None:
        if rack >= racks:
            raise ConfigError(f"HYBRIDPS_RACK_INDEX={rack} is none of HYBRIDPS_RACKS={racks} racks: they count from 0")
        self.addresses = addresses
        self.failed: dict[str, HybridPSError] = {}
        """The jobs that have lost their parents, and why."""
        self.ready = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._open = partial(Client, addresses, group=rack, groups=racks, settings=settings)
        self._back: queue.SimpleQueue[_Back] = queue.SimpleQueue()
        self._links: dict[tuple[str, str], _Link] = {}
        self._leaving: list[_Link] = []

    @classmethod
    def of(cls, settings: Settings) -> Parents | None:
        """Return the parents that the settings name, if any. Raises ConfigError if they cannot be used."""
        if not settings.parents:
            return None
        return cls(settings.parents, settings.rack_index, settings.racks, settings)

    def send(self, up: ParentRequest) -> None:
        """Begin a request. Only one exchange of a part of a table may be under way. A freed table is only dropped."""
        if up.table.is_freed and up.action != "drop":
            return
        known = up.table.job, up.table.parent_job
        if known not in self._links:
            self._links[known] = _Link(known[0], partial(self._open, job=known[1]), self._tell)
        self._links[known].put(up)

    def collect(self) -> list[tuple[ParentRequest, HybridPSError | None]]:
        """Return the completed requests of tables that are in use.

        From then on, `failed` has the jobs that have lost their parents.
        """
        _read(self.ready)
        back = []
        while not self._back.empty():
            link, up, error = self._back.get()
            if up is not None:
                back += [] if up.table.is_freed else [(up, error)]
            elif link in self._links.values():
                kind = LayoutError if isinstance(error, LayoutError) else ServerError
                lost = kind(f"this rack server has lost its parents at {', '.join(self.addresses)}: {error}")
                self.failed.setdefault(link.job, lost)
        return back

    def leave(self, job: str, lost: bool, early: bool) -> None:
        """Leave a job that has no groups here any more. `lost`, `early`: as the last of them. It may come back."""
        for known in [known for known in self._links if known[0] == job]:
            link = self._links.pop(known)
            link.put(_Leaving(lost, early))
            self._leaving.append(link)
        self.failed.pop(job, None)
        self._leaving = [link for link in self._leaving if not link.over()]

    def close(self) -> None:
        """Leave all jobs and release all resources, in bounded time."""
        for job, _ in [*self._links]:
            self.leave(job, lost=False, early=True)
        end = time.monotonic() + _CLOSE_SECONDS
        self._leaving = [link for link in self._leaving if not link.over(end - time.monotonic())]
        if not self._leaving:
            os.close(self.ready)

    def _tell(self, back: _Back) -> None:
        self._back.put(back)
        os.eventfd_write(self.ready, 1)


class _Leaving(NamedTuple):
    """How a job leaves its parents: the arguments of `Client.close`."""

    lost: bool
    early: bool


class _Link:
    """One job at the parents. Its thread owns the client, and can begin an operation while it waits for others."""

    def __init__(self, job: str, open_client: Callable[[], Client], tell: Callable[[_Back], None]) -> None:
        self.job = job
        self._open = open_client
        self._tell = tell
        self._queue: queue.SimpleQueue[ParentRequest | _Leaving] = queue.SimpleQueue()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._under_way: dict[ParentRequest, OperationSequence[None]] = {}
        self._held: list[ParentRequest] = []
        """Drops of tables that have requests under way, and what came later for tables of the same names."""
        self._thread = threading.Thread(target=self._run, name=f"hybridps-parents-{job}", daemon=True)
        self._thread.start()

    def put(self, what: ParentRequest | _Leaving) -> None:
        """Begin a request; or leave, as the last call."""
        self._queue.put(what)
        os.eventfd_write(self._wake, 1)

    def over(self, seconds: float = 0.0) -> bool:
        """Return whether the thread has ended within `seconds`. Do not call this again after it was true."""
        self._thread.join(max(0.0, seconds))
        if not self._thread.is_alive():
            os.close(self._wake)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            with self._open() as client:
                client.session.wake_by(self._wake)
                client.close(*self._work(client))
        except HybridPSError as error:
            self._tell((self, None, error))
        except Exception as error:
            log.exception("the link to the parents failed")
            self._tell((self, None, ServerError(f"the rack server failed: {type(error).__name__}: {error}")))

    def _work(self, client: Client) -> _Leaving:
        """Work until the job leaves. Returns how it does so."""
        while True:
            while not self._queue.empty():
                what = self._queue.get()
                if isinstance(what, _Leaving):
                    return what
                self._held.append(what)
            self._begin(client)
            if not self._finish():
                client.session.listen()
                _read(self._wake)

    def _begin(self, client: Client) -> None:
        """Begin what was held, in order, as far as it need not wait."""
        waiting, self._held = self._held, []
        for up in waiting:
            before = (*self._held, *(self._under_way if up.action == "drop" else ()))
            if any(other.table.name == up.table.name for other in before):
                self._held.append(up)
            else:
                self._under_way[up] = OperationSequence(_ACTIONS[up.action](client, up))

    def _finish(self) -> bool:
        """Hand back what is done, and begin what follows. Returns whether anything was done."""
        done = [up for up, steps in self._under_way.items() if steps.done]
        for up in done:
            try:
                self._under_way.pop(up).wait()
                self._tell((self, up, None))
            except NotFiniteError as error:
                self._tell((self, up, error))
        return bool(done)


def _register(client: Client, up: ParentRequest) -> Generator[Operation, None, None]:
    """Register the table, and read the parents' centre; the values stay if all racks have dropped the table."""
    table = up.table
    codec = "exact" if isinstance(table.spec.codec, Quantised) else table.spec.codec  # sums of several groups
    spec = msgspec.structs.replace(
        table.spec, layout=table.parent_layout, server=0, servers=len(client.servers), codec=codec
    )
    joining = yield from client.begin_register(table.name, spec, table.values)
    table.is_at_parents = joining is not Joining.DROPPED
    if joining is Joining.LATE:
        yield from client.begin_pull(table.name, table.values)


def _exchange(client: Client, up: ParentRequest) -> Generator[Operation, None, None]:
    """Exchange a part, and read the centre if the answer is something else."""
    table, start, stop = up.table, up.place.start, up.place.stop
    yield client.exchange(table.name, table.values, table.values, start, stop, groups=up.groups)
    if table.parent_centre is not None:
        # The next round cannot complete without this rack.
        yield from client.begin_pull(table.name, table.parent_centre, start=start, stop=stop)


def _drop(client: Client, up: ParentRequest) -> Generator[Operation, None, None]:
    if up.table.is_at_parents:
        client.drop(up.table.name)
    yield from ()


_ACTIONS = {"register": _register, "exchange": _exchange, "drop": _drop}


def _read(descriptor: int) -> None:
    """Reset an eventfd, so that it cannot be read until it is written again."""
    with suppress(BlockingIOError):
        os.eventfd_read(descriptor)
