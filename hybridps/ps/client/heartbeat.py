"""The client's signs of life, and its watch over those of the servers: one thread with sockets of its own.

A server that leaves heartbeats unanswered for `lost_seconds` is away. It is asked on, by new connections, as those that
a network has cut try again ever more rarely. The others are not asked meanwhile: a group that waits for one server
shall not hold up those that meet at another one.
"""

from __future__ import annotations

import contextlib
import math
import os
import socket as sockets_of_system
import sys
import threading
import time
from collections import deque
from collections.abc import Callable

import zmq

from hybridps.config import Settings
from hybridps.errors import HybridPSError, ServerError
from hybridps.ps import wire
from hybridps.ps.client.sockets import Sockets
from hybridps.ps.model import UnknownClientError


class Heartbeat(threading.Thread):
    """Sends a heartbeat to the servers that it `begin`s with, each `beat_seconds`, until `stop` or a failure."""

    def __init__(self, sockets: Sockets, session: int, settings: Settings) -> None:
        super().__init__(name="hybridps-heartbeat", daemon=True)
        self.failure: HybridPSError | None = None
        """A server was away for too long, or refused a heartbeat."""
        self.away: dict[int, float] = {}
        """The servers that are away, and since when."""
        self.returned: deque[int] = deque()
        """Servers that were away and have answered. Whoever reads it removes them, as in `strangers`."""
        self.strangers: dict[int, UnknownClientError] = {}
        """Servers that do not know this client, or have taken it as lost, and what they said."""
        self.report: Callable[[], tuple[float, float | None]] = lambda: (0.0, None)
        """For how long some rank of the group has been silent, and for how long the group has waited for servers."""
        self.counted: tuple[int, int] | None = None
        """The groups of the job and their workers, as the first server has told last."""
        self.settled = 0
        """All requests before this one are answered: the servers need not keep those answers."""
        self._session = session
        self._settings = settings
        self._beat_seconds = settings.beat_seconds
        self._lost_seconds = settings.lost_seconds
        self._longest_seconds = max(settings.lost_seconds, settings.longest_away_seconds)
        self._addresses = sockets.addresses
        self._begun: set[int] = set()
        # A few: heartbeats that a lost server cannot read are of no use later.
        self._sockets = [sockets.make(4, wire.LARGEST_CONTROL_BYTES) for _ in self._addresses]
        self._asked: dict[int, float] = {}
        """When the first heartbeat without an answer was sent, by server."""
        self._opened: dict[int, float] = {}
        """When a server that does not answer was last connected with anew, or else asked first."""
        self._ending = os.eventfd(0, os.EFD_CLOEXEC)

    def begin(self, server: int) -> None:
        """The server knows this client."""
        self.strangers.pop(server, None)
        self._begun.add(server)

    def stop(self) -> None:
        """End the thread, if it runs, and release its sockets. Only once."""
        os.eventfd_write(self._ending, 1)
        if self.ident is not None:
            self.join()
        os.close(self._ending)
        for socket in self._sockets:
            socket.close(linger=0)

    def run(self) -> None:
        """What the thread does."""
        poller = zmq.Poller()
        poller.register(self._ending, zmq.POLLIN)
        for socket, address in zip(self._sockets, self._addresses, strict=True):
            socket.connect(address)
            poller.register(socket, zmq.POLLIN)
        due = time.monotonic()
        try:
            while True:
                if time.monotonic() >= due:
                    self._send()
                    due = time.monotonic() + self._beat_seconds
                if self._ending in dict(poller.poll(math.ceil(max(0.0, due - time.monotonic()) * 1000))):
                    return
                if time.monotonic() > due + self._lost_seconds / 2:
                    self._asked.clear()  # this process was stopped, and maybe the servers with it
                self._read()
        except HybridPSError as error:
            self.failure = error

    def _send(self) -> None:
        beat, now = wire.encode(wire.Heartbeat(self._session, self.settled, *self.report())), time.monotonic()
        asked = [*(self.away or self._begun)]
        self._asked = {server: self._asked.get(server, now) for server in asked}
        for server in asked:
            with contextlib.suppress(zmq.Again):
                self._sockets[server].send(beat, zmq.NOBLOCK)

    def _read(self) -> None:
        """Read the answers. Raises HybridPSError for a server that refused a heartbeat, or is away for too long."""
        for server, (address, socket) in enumerate(zip(self._addresses, self._sockets, strict=True)):
            while socket.poll(0):
                answer = wire.decode_answer(socket.recv())
                if isinstance(answer, wire.Refused):
                    error = wire.error_of(answer, address)
                    if not isinstance(error, UnknownClientError):
                        raise error
                    self.strangers[server] = error
                if not server and isinstance(answer, wire.Alive) and answer.groups:
                    self.counted = answer.groups, answer.workers
                self._hear(server)
            # After reading: a process that was stopped for a while finds the answers that came meanwhile first.
            if server in self._asked:
                self._look_after(server, time.monotonic())

    def _hear(self, server: int) -> None:
        """A server has answered."""
        self._asked.pop(server, None)
        self._opened.pop(server, None)
        since = self.away.pop(server, None)
        if since is not None:
            self.returned.append(server)
            self._say(f"{self._addresses[server]} is back after {time.monotonic() - since:.0f} s")

    def _look_after(self, server: int, now: float) -> None:
        """A server has not answered yet. Raises ServerError if it is away for too long."""
        address, silent = self._addresses[server], now - self._asked[server]
        if now - self._opened.setdefault(server, self._asked[server]) > self._lost_seconds / 2:
            self._opened[server] = now
            _connect_anew(self._sockets[server], address)
        if silent <= self._lost_seconds:
            return
        lost, longest = f"{self._lost_seconds:g} s", f"{self._longest_seconds:g} s"
        refuses = not self._settings.awaits_refusing and self._refuses(address)
        if refuses or silent > self._longest_seconds:
            raise ServerError(
                f"{address} gave no sign of life for {lost if refuses else longest}: the server "
                f"{'refuses connections' if refuses else 'cannot be reached'}; start it again, and then the groups"
            )
        if server not in self.away:
            self.away[server] = self._asked[server]
            self._say(f"{address} cannot be reached for {lost}: waiting up to {longest}")

    def _refuses(self, address: str) -> bool:
        """Whether nobody listens at an address, and its host says so."""
        host, _, port = address.removeprefix("tcp://").rpartition(":")
        if not address.startswith("tcp://"):
            return True  # of this host
        try:
            with sockets_of_system.create_connection((host.strip("[]"), int(port)), self._beat_seconds):
                return False
        except OSError as error:
            return isinstance(error, ConnectionRefusedError)

    def _say(self, message: str) -> None:
        if not self._settings.quiet:
            print(f"hybridps: {message}", file=sys.stderr, flush=True)


def _connect_anew(socket: zmq.Socket[bytes], address: str) -> None:
    """Give up a connection, and what was sent there, for a new one."""
    if address.startswith("tcp://"):
        socket.disconnect(address)
        socket.connect(address)
