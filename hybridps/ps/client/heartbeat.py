"""The client's signs of life, and its watch over those of the servers: one thread with sockets of its own."""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time

import zmq

from hybridps.config import Settings
from hybridps.errors import HybridPSError, ServerError
from hybridps.ps import wire
from hybridps.ps.client.sockets import Sockets


class Heartbeat(threading.Thread):
    """Sends a heartbeat to every server each `heartbeat_seconds`, from `start` until `stop` or a failure."""

    def __init__(self, sockets: Sockets, session: int, settings: Settings) -> None:
        super().__init__(name="hybridps-heartbeat", daemon=True)
        self.failure: HybridPSError | None = None
        """A server left heartbeats unanswered for `lost_seconds`, or refused one."""
        self.counted: tuple[int, int] | None = None
        """The groups of the job and their workers, as the first server has told last."""
        self.settled = 0
        """All requests before this one are answered: the servers need not keep those answers."""
        self._session = session
        self._beat_seconds = min(settings.heartbeat_seconds, settings.lost_seconds / 4)
        self._lost_seconds = settings.lost_seconds
        self._addresses = sockets.addresses
        # A few: heartbeats that a lost server cannot read are of no use later.
        self._sockets = [sockets.make(4, wire.LARGEST_CONTROL_BYTES) for _ in self._addresses]
        self._asked: dict[int, float] = {}
        """When the first heartbeat without an answer was sent, by server."""
        self._ending = os.eventfd(0, os.EFD_CLOEXEC)

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
                self._read()
        except HybridPSError as error:
            self.failure = error

    def _send(self) -> None:
        beat, now = wire.encode(wire.Heartbeat(self._session, self.settled)), time.monotonic()
        for server, socket in enumerate(self._sockets):
            self._asked.setdefault(server, now)
            with contextlib.suppress(zmq.Again):
                socket.send(beat, zmq.NOBLOCK)

    def _read(self) -> None:
        """Read the answers, and raise ServerError for a server that refused a heartbeat, or answered none for long."""
        for server, (address, socket) in enumerate(zip(self._addresses, self._sockets, strict=True)):
            while socket.poll(0):
                answer = wire.decode_answer(socket.recv())
                if isinstance(answer, wire.Refused):
                    raise wire.error_of(answer, address)
                if not server and isinstance(answer, wire.Alive) and answer.groups:
                    self.counted = answer.groups, answer.workers
                self._asked.pop(server, None)
            # After reading: a process that was stopped for a while finds the answers that came meanwhile first.
            if time.monotonic() - self._asked.get(server, math.inf) > self._lost_seconds:
                raise ServerError(
                    f"{address} gave no sign of life for {self._lost_seconds:g} s: the server is gone or cannot be "
                    "reached; start it again, and then the groups"
                )
