"""The client's signs of life, and its watch over those of the servers, on one thread with sockets of its own.

A server that leaves heartbeats unanswered for `lost_seconds` is away. The thread keeps asking it, over new connections,
because an old one that a network has cut retries ever more rarely. It does not ask the other servers meanwhile. So a
group that waits for one server does not hold up the groups that wait for each other at another server.
"""

from __future__ import annotations

import contextlib
import math
import os
import socket as sockets_of_system
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import zmq

from hybridps.config import Settings
from hybridps.errors import HybridPSError, ServerError
from hybridps.events import say
from hybridps.ps import wire
from hybridps.ps.client.sockets import Sockets
from hybridps.ps.model import UnknownClientError


@dataclass
class _Server:
    """What the heartbeat knows about one server."""

    address: str
    socket: zmq.Socket[bytes]
    has_begun: bool = False
    asked: float | None = None
    """When the first unanswered heartbeat was sent, if there is one."""
    opened: float | None = None
    """When its connection was last opened anew because it does not answer, or else when it was first asked."""


class Heartbeat(threading.Thread):
    """Sends a heartbeat to the servers that it `begin`s with, every `beat_seconds`, until `stop` or a failure.

    This thread writes the attributes, and the client's thread reads them, unless they say otherwise.
    """

    def __init__(self, sockets: Sockets, session: int, settings: Settings) -> None:
        super().__init__(name="hybridps-heartbeat", daemon=True)
        self.failure: HybridPSError | None = None
        """The error if a server was away for too long, or refused a heartbeat."""
        self.away: dict[int, float] = {}
        """The servers that are away, and since when."""
        self.returned: deque[int] = deque()
        """Servers that were away and have answered. The client's thread removes them; the same holds for
        `strangers`."""
        self.strangers: dict[int, UnknownClientError] = {}
        """Servers that do not know this client, or have taken it as lost, with the error that they sent."""
        self.report: Callable[[], tuple[float, float | None]] = lambda: (0.0, None)
        """Returns for how long some rank of the group has been silent, and for how long the group has waited for
        servers. The client's thread sets it."""
        self.counted: tuple[int, int] | None = None
        """The numbers of groups and workers of the job that the first server reported last."""
        self.behind: int | None = None
        """The group furthest behind the others at the server that reported last; None if none is."""
        self.settled = 0
        """All requests before this one are answered, so the servers need not keep those answers. The client's thread
        sets it."""
        self._session = session
        self._settings = settings
        self._longest_seconds = max(settings.lost_seconds, settings.longest_away_seconds)
        # A short queue, because heartbeats that a lost server cannot read are of no use later.
        sizes = 4, wire.LARGEST_CONTROL_BYTES
        self._servers = [_Server(address, sockets.make(*sizes)) for address in sockets.addresses]
        self._ending = os.eventfd(0, os.EFD_CLOEXEC)

    def begin(self, server: int) -> None:
        """Send heartbeats to a server, which knows this client, from now on."""
        self.strangers.pop(server, None)
        self._servers[server].has_begun = True

    def stop(self) -> None:
        """End the thread, if it runs, and release its sockets. Call this only once."""
        os.eventfd_write(self._ending, 1)
        if self.ident is not None:
            self.join()
        os.close(self._ending)
        for server in self._servers:
            server.socket.close(linger=0)

    def run(self) -> None:
        """The thread's main function."""
        poller = zmq.Poller()
        poller.register(self._ending, zmq.POLLIN)
        for server in self._servers:
            server.socket.connect(server.address)
            poller.register(server.socket, zmq.POLLIN)
        due = time.monotonic()
        try:
            while True:
                if time.monotonic() >= due:
                    self._send()
                    due = time.monotonic() + self._settings.beat_seconds
                if self._ending in dict(poller.poll(math.ceil(max(0.0, due - time.monotonic()) * 1000))):
                    return
                if time.monotonic() > due + self._settings.lost_seconds / 2:
                    for server in self._servers:
                        server.asked = None  # this process was stopped, and perhaps the servers too
                self._read()
        except HybridPSError as error:
            self.failure = error

    def _send(self) -> None:
        beat, now = wire.encode(wire.Heartbeat(self._session, self.settled, *self.report())), time.monotonic()
        for number, server in enumerate(self._servers):
            if not (number in self.away if self.away else server.has_begun):
                server.asked = None
                continue
            server.asked = now if server.asked is None else server.asked
            with contextlib.suppress(zmq.Again):
                server.socket.send(beat, zmq.NOBLOCK)

    def _read(self) -> None:
        """Read the answers. Raises HybridPSError if a server has refused a heartbeat or is away for too long."""
        for number, server in enumerate(self._servers):
            while server.socket.poll(0):
                answer = wire.decode_answer(server.socket.recv())
                if isinstance(answer, wire.Refused):
                    error = wire.error_of(answer, server.address)
                    if not isinstance(error, UnknownClientError):
                        raise error
                    self.strangers[number] = error
                if isinstance(answer, wire.Alive) and answer.groups:
                    if number == 0:
                        self.counted = answer.groups, answer.workers
                    self.behind = answer.behind - 1 if answer.behind else None
                self._hear(number, server)
            # This follows the reading, so that a process that was stopped finds the answers that have arrived meanwhile
            # first.
            if server.asked is not None:
                self._look_after(number, server, server.asked)

    def _hear(self, number: int, server: _Server) -> None:
        """Note that a server has answered."""
        server.asked = server.opened = None
        since = self.away.pop(number, None)
        if since is not None:
            self.returned.append(number)
            self._say(f"{server.address} is back after {time.monotonic() - since:.0f} s")

    def _look_after(self, number: int, server: _Server, asked: float) -> None:
        """Check a server that has not answered yet. Raises ServerError if it is away for too long."""
        now, lost_seconds = time.monotonic(), self._settings.lost_seconds
        if server.opened is None:
            server.opened = asked
        if now - server.opened > lost_seconds / 2:
            server.opened = now
            _connect_anew(server)
        if now - asked <= lost_seconds:
            return
        lost, longest = f"{lost_seconds:g} s", f"{self._longest_seconds:g} s"
        refuses = not self._settings.awaits_refusing and self._refuses(server.address)
        if refuses or now - asked > self._longest_seconds:
            raise ServerError(
                f"{server.address} gave no sign of life for {lost if refuses else longest}: the server "
                f"{'refuses connections' if refuses else 'cannot be reached'}; start it again, and then the groups"
            )
        if number not in self.away:
            self.away[number] = asked
            self._say(f"{server.address} cannot be reached for {lost}: waiting up to {longest}")

    def _refuses(self, address: str) -> bool:
        """Return whether the host of an address reports that nothing listens there."""
        host, _, port = address.removeprefix("tcp://").rpartition(":")
        if not address.startswith("tcp://"):
            return True  # an address on this host
        try:
            with sockets_of_system.create_connection((host.strip("[]"), int(port)), self._settings.beat_seconds):
                return False
        except OSError as error:
            return isinstance(error, ConnectionRefusedError)

    def _say(self, message: str) -> None:
        if not self._settings.quiet:
            say(message)


def _connect_anew(server: _Server) -> None:
    """Replace a connection, and what was sent there, by a new one."""
    if server.address.startswith("tcp://"):
        server.socket.disconnect(server.address)
        server.socket.connect(server.address)
