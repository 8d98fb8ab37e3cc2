"""The client's signs of life, and its watch over those of the servers: one thread with its own sockets."""

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


class Heart:
    """Sends a heartbeat to every server each `beat_seconds`, from construction until `stop`.

    A server that does not answer for `lost_seconds`, or refuses, is named by `check`.
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
        """All requests before this one were answered: the servers need not keep their answers."""
        self._beat_seconds = min(beat_seconds, lost_seconds / 4)
        self._lost_seconds = lost_seconds
        self._heard = [time.monotonic()] * len(self._addresses)
        self._refusals: list[HybridPSError] = []
        self._wake_out, self._wake_in = os.pipe()
        self._sockets = [_beating(context, address, credentials) for address in self._addresses]
        self._thread = threading.Thread(target=self._run, name="hybridps-heart", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise ServerError if a server is taken as lost, or has dropped this client."""
        if self._refusals:
            raise self._refusals[0]
        now = time.monotonic()
        for address, heard in zip(self._addresses, self._heard, strict=True):
            if now - heard > self._lost_seconds:
                raise ServerError(
                    f"{address} gave no sign of life for {self._lost_seconds:g} s: the server is gone or cannot be "
                    "reached; start it again, and then the groups"
                )

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
        finally:
            for socket in self._sockets:
                socket.close(linger=0)

    def _send(self) -> None:
        beat = wire.encode(wire.Heartbeat(self._session, self.settled))
        for socket in self._sockets:
            try:
                socket.send(beat, zmq.NOBLOCK)
            except zmq.Again:
                continue

    def _read(self) -> None:
        for place, socket in enumerate(self._sockets):
            try:
                while True:
                    self._take(place, socket.recv(zmq.NOBLOCK))
            except zmq.Again:
                continue

    def _take(self, place: int, frame: bytes) -> None:
        try:
            answer = wire.decode_answer(frame)
        except HybridPSError as error:
            self._refusals.append(error)
            return
        if isinstance(answer, wire.Refused):
            self._refusals.append(wire.error_of(answer, self._addresses[place]))
        else:
            self._heard[place] = time.monotonic()


def _beating(context: Any, address: str, credentials: Credentials | None) -> Any:
    socket = context.socket(zmq.DEALER)
    # A few: beats that a gone server cannot read are of no use later.
    socket.setsockopt(zmq.SNDHWM, 4)
    socket.setsockopt(zmq.MAXMSGSIZE, wire.LARGEST_CONTROL_BYTES)
    if credentials is not None:
        credentials.secure(socket)
    socket.connect(address)
    return socket
