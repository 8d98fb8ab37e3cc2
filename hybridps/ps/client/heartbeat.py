"""The client's signs of life, and its watch over those of the servers: one thread with sockets of its own."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Sequence
from typing import Any

import zmq

from hybridps.errors import HybridPSError, ServerError
from hybridps.ps import wire
from hybridps.ps.keys import Credentials


class Heartbeat:
    """Sends a heartbeat to every server each `beat_seconds`, from construction until `stop`.

    `check` raises if a server leaves heartbeats unanswered for `lost_seconds`, or refuses one.
    """

    def __init__(
        self,
        context: Any,
        addresses: Sequence[str],
        session: int,
        beat_seconds: float,
        lost_seconds: float,
        credentials: Credentials | None = None,
    ) -> None:
        self._addresses = tuple(addresses)
        self._session = session
        self.settled = 0
        """All requests before this one are answered: the servers need not keep those answers."""
        self._beat_seconds = min(beat_seconds, lost_seconds / 4)
        self._lost_seconds = lost_seconds
        self._asked: list[float | None] = [None] * len(self._addresses)
        """When the first heartbeat without an answer was sent to each server."""
        self._failure: HybridPSError | None = None
        self._wake_out, self._wake_in = os.pipe()
        self._sockets = [_connect(context, address, credentials) for address in self._addresses]
        self._thread = threading.Thread(target=self._run, name="hybridps-heartbeat", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise ServerError if a server is lost, or has dropped this client."""
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """End the thread and release its sockets. Only once."""
        os.write(self._wake_in, b"s")
        self._thread.join()
        os.close(self._wake_out)
        os.close(self._wake_in)

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._wake_out, zmq.POLLIN)
        for socket in self._sockets:
            poller.register(socket, zmq.POLLIN)
        due = time.monotonic()
        try:
            while True:
                if time.monotonic() >= due:
                    self._send()
                    due = time.monotonic() + self._beat_seconds
                ready = dict(poller.poll(math.ceil(max(0.0, due - time.monotonic()) * 1000)))
                if self._wake_out in ready:
                    return
                self._read()
                # After reading: a process that was stopped for a while finds the answers that came meanwhile first.
                self._find_lost()
        finally:
            for socket in self._sockets:
                socket.close(linger=0)

    def _send(self) -> None:
        beat, now = wire.encode(wire.Heartbeat(self._session, self.settled)), time.monotonic()
        for server, socket in enumerate(self._sockets):
            if self._asked[server] is None:
                self._asked[server] = now
            try:
                socket.send(beat, zmq.NOBLOCK)
            except zmq.Again:
                continue

    def _read(self) -> None:
        for server, socket in enumerate(self._sockets):
            try:
                while True:
                    self._take(server, socket.recv(zmq.NOBLOCK))
            except zmq.Again:
                continue

    def _take(self, server: int, frame: bytes) -> None:
        try:
            answer = wire.decode_answer(frame)
        except HybridPSError as error:
            self._fail(error)
            return
        if isinstance(answer, wire.Refused):
            self._fail(wire.error_of(answer, self._addresses[server]))
        else:
            self._asked[server] = None

    def _find_lost(self) -> None:
        now = time.monotonic()
        for address, asked in zip(self._addresses, self._asked, strict=True):
            if asked is not None and now - asked > self._lost_seconds:
                self._fail(
                    ServerError(
                        f"{address} gave no sign of life for {self._lost_seconds:g} s: the server is gone or cannot be "
                        "reached; start it again, and then the groups"
                    )
                )

    def _fail(self, error: HybridPSError) -> None:
        """The first error counts."""
        if self._failure is None:
            self._failure = error


def _connect(context: Any, address: str, credentials: Credentials | None) -> Any:
    socket = context.socket(zmq.DEALER)
    # A few: heartbeats that a lost server cannot read are of no use later.
    socket.setsockopt(zmq.SNDHWM, 4)
    socket.setsockopt(zmq.MAXMSGSIZE, wire.LARGEST_CONTROL_BYTES)
    if credentials is not None:
        credentials.secure(socket)
    socket.connect(address)
    return socket
