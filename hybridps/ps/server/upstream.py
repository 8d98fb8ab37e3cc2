"""What a rack server has above it: servers whose client it is, and a thread for each job that talks to them.

The server's own loop never waits for them: it hands over what goes up, and collects what is back.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Generator
from functools import partial
from typing import NamedTuple

from hybridps.config import Settings
from hybridps.errors import ConfigError, HybridPSError, LayoutError, ServerError
from hybridps.ps.client.client import Client
from hybridps.ps.client.operations import Operation, OperationSequence
from hybridps.ps.model import Joining, Upward
from hybridps.ps.rules.finite import NotFiniteError

log = logging.getLogger("hybridps.ps")

_CLOSE_SECONDS = 3.0
"""For all links together, in which each says goodbye."""


class Answered(NamedTuple):
    """What went up is back. `error`: the parents did not take these values."""

    up: Upward
    error: HybridPSError | None


class Failed(NamedTuple):
    """A job has lost the parents, because of a link to them, or of what happened here."""

    job: str
    error: HybridPSError
    link: _Link | None = None


class Parents:
    """The parents of one rack server, at `addresses`. There the rack is group `rack` of `racks`.

    `settings` have the deadlines, and the keys if the parents demand some. `ready` is a descriptor that can be read
    when `collect` has something.
    """

    def __init__(self, addresses: tuple[str, ...], rack: int, racks: int, settings: Settings) -> None:
        if rack >= racks:
            raise ConfigError(f"HYBRIDPS_RACK_INDEX={rack} is none of HYBRIDPS_RACKS={racks} racks: they count from 0")
        self.addresses = addresses
        self.failed: dict[str, HybridPSError] = {}
        """The jobs that lost them, and why."""
        self.ready = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._open = partial(Client, addresses, group=rack, groups=racks, settings=settings)
        self._back: queue.SimpleQueue[Answered | Failed] = queue.SimpleQueue()
        self._links: dict[tuple[str, str], _Link] = {}
        self._leaving: list[_Link] = []

    @classmethod
    def of(cls, settings: Settings) -> Parents | None:
        """Those of the settings, if any. Raises ConfigError if they cannot be used."""
        if not settings.parents:
            return None
        return cls(settings.parents, settings.rack_index, settings.racks, settings)

    def send(self, up: Upward) -> None:
        """Begin with what goes up. Of a part of a table only one exchange may be under way."""
        known = up.job, up.table.job
        if known not in self._links:
            self._links[known] = _Link(up.job, lambda: self._open(job=up.table.job), self._tell)
        self._links[known].send(up)

    def collect(self) -> list[Answered]:
        """What is back. From then on `failed` has the jobs that lost the parents."""
        try:
            os.eventfd_read(self.ready)
        except BlockingIOError:
            return []
        answered = []
        while not self._back.empty():
            back = self._back.get()
            if isinstance(back, Answered):
                answered.append(back)
            elif back.link is None or back.link in self._links.values():
                self.failed.setdefault(back.job, _said(back.error, self.addresses))
        return answered

    def leave(self, job: str, lost: bool) -> None:
        """A job has no groups here any more: leave it, as `lost` if its groups are. It may come back."""
        for known in [known for known in self._links if known[0] == job]:
            link = self._links.pop(known)
            link.leave(lost)
            self._leaving.append(link)
        self.failed.pop(job, None)
        self._leaving = [link for link in self._leaving if not link.over()]

    def close(self) -> None:
        """Leave all jobs, and release what is held, in bounded time."""
        for job, _ in [*self._links]:
            self.leave(job, lost=False)
        end = time.monotonic() + _CLOSE_SECONDS
        self._leaving = [link for link in self._leaving if not link.over(end - time.monotonic())]
        if not self._leaving:
            os.close(self.ready)

    def _tell(self, back: Answered | Failed) -> None:
        self._back.put(back)
        os.eventfd_write(self.ready, 1)


class _Leave(NamedTuple):
    lost: bool


class _Link:
    """One job at the parents. A thread has the client, and never waits for one operation while another can begin."""

    def __init__(self, job: str, open_client: Callable[[], Client], tell: Callable[[Answered | Failed], None]) -> None:
        self._job = job
        self._open = open_client
        self._tell = tell
        self._queue: queue.SimpleQueue[Upward | _Leave] = queue.SimpleQueue()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._under_way: dict[Upward, OperationSequence[None]] = {}
        self._thread = threading.Thread(target=self._run, name=f"hybridps-parents-{job}", daemon=True)
        self._thread.start()

    def send(self, up: Upward) -> None:
        self._put(up)

    def leave(self, lost: bool) -> None:
        """The last that may be called but for `over`."""
        self._put(_Leave(lost))

    def over(self, seconds: float = 0.0) -> bool:
        """Whether the thread has ended, within so many seconds; only once it is."""
        self._thread.join(max(0.0, seconds))
        if not self._thread.is_alive():
            os.close(self._wake)
        return not self._thread.is_alive()

    def _put(self, what: Upward | _Leave) -> None:
        self._queue.put(what)
        os.eventfd_write(self._wake, 1)

    def _run(self) -> None:
        try:
            client = self._open()
            try:
                client.wake_by(self._wake)
                lost = self._work(client)
            except BaseException:
                client.close()
                raise
            client.lose() if lost else client.close()
        except HybridPSError as error:
            self._tell(Failed(self._job, error, self))
        except Exception as error:
            log.exception("the link to the parents failed")
            failed = ServerError(f"the rack server failed: {type(error).__name__}: {error}")
            self._tell(Failed(self._job, failed, self))

    def _work(self, client: Client) -> bool:
        """Until the job leaves; returns whether as lost."""
        while True:
            while not self._queue.empty():
                what = self._queue.get()
                if isinstance(what, _Leave):
                    return what.lost
                self._under_way[what] = OperationSequence(_ACTIONS[what.action](client, what))
            client.listen(self._under_way.values())
            self._drain()
            for up, steps in [*self._under_way.items()]:
                if steps.done:
                    del self._under_way[up]
                    self._end(up, steps)

    def _end(self, up: Upward, steps: OperationSequence[None]) -> None:
        try:
            steps.wait()
            self._tell(Answered(up, None))
        except NotFiniteError as error:
            self._tell(Answered(up, error))

    def _drain(self) -> None:
        try:
            os.eventfd_read(self._wake)
        except BlockingIOError:
            return


def _register(client: Client, up: Upward) -> Generator[Operation, None, None]:
    """Register the table; the parents' centre comes back."""
    above = up.table
    spec = above.layout, above.values, above.rule, above.clock, above.codec, above.chunk_bytes
    registration = client.begin_register(above.table, *spec)
    while not registration.done and registration.current is not None:
        yield registration.current
    if registration.wait() is not Joining.NEW:
        pull = client.pull(above.table, above.values)
        yield pull
        pull.wait()


def _exchange(client: Client, up: Upward) -> Generator[Operation, None, None]:
    """Exchange a part, and read the centre if the answer is something else."""
    above, place = up.table, up.place or slice(0, 0)
    exchange = client.exchange(above.table, above.values, above.values, place.start, place.stop, up.groups)
    yield exchange
    exchange.wait()
    if above.centre is not None:
        # Nobody can complete the next round without this rack.
        pull = client.pull(above.table, above.centre, place.start, place.stop)
        yield pull
        pull.wait()


def _drop(client: Client, up: Upward) -> Generator[Operation, None, None]:
    client.drop(up.table.table)
    yield from ()


_ACTIONS = {"register": _register, "exchange": _exchange, "drop": _drop}


def _said(error: HybridPSError, addresses: tuple[str, ...]) -> HybridPSError:
    """What the groups of the rack are told."""
    kind = LayoutError if isinstance(error, LayoutError) else ServerError
    return kind(f"this rack server has lost its parents at {', '.join(addresses)}: {error}")
