"""The client's sockets to its servers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import zmq
from zmq.utils.monitor import recv_monitor_message

from hybridps.errors import ServerError
from hybridps.memory import keep_message_memory
from hybridps.ps import wire
from hybridps.ps.keys import Credentials
from hybridps.ps.loopback import send_unpaced

_CONNECTED = int(zmq.Event.CONNECTED)
_UP = int(zmq.Event.HANDSHAKE_SUCCEEDED)
_FAILED = int(
    zmq.Event.HANDSHAKE_FAILED_AUTH | zmq.Event.HANDSHAKE_FAILED_PROTOCOL | zmq.Event.HANDSHAKE_FAILED_NO_DETAIL
)
_ATTEMPTS = 3
"""A handshake that fails so many times in a row is refused: a connection may also just break in one."""


class Restored(NamedTuple):
    """A connection was lost and is there again: what was under way may have been lost with it."""


class Incoming(NamedTuple):
    """A message of a server; `payloads` are valid as long as they are held."""

    server: int
    answer: wire.Answer | Restored
    payloads: Sequence[memoryview] = ()


class Links:
    """One socket for each address, and the context they live in. Raises ServerError for an unusable address.

    With `credentials` all that goes over them is encrypted, and both sides know each other.
    """

    def __init__(self, addresses: Sequence[str], credentials: Credentials | None = None) -> None:
        keep_message_memory()
        self.addresses = tuple(addresses)
        self._credentials = credentials
        self.context: Any = zmq.Context()
        self._poller = zmq.Poller()
        self._sockets: list[Any] = []
        self._monitors: list[Any] = []
        self._met: set[int] = set()
        self._failed = [0] * len(self.addresses)
        try:
            for address in self.addresses:
                self._connect(address)
        except BaseException:
            self.close(0.0)
            raise

    def __len__(self) -> int:
        return len(self.addresses)

    def send(self, server: int, message: wire.Message, payloads: Sequence[np.ndarray] = ()) -> None:
        """Hand a message to the transport. Payloads are not copied: they may not change until they are answered."""
        frames = [wire.encode(message), *(payload.view(np.uint8).data for payload in payloads)]
        self._sockets[server].send_multipart(frames, copy=not payloads)

    def wake_by(self, descriptor: int) -> None:
        """Have `receive` return when that descriptor can be read."""
        self._poller.register(descriptor, zmq.POLLIN)

    def receive(self, seconds: float) -> Iterator[Incoming]:
        """The messages that are there, or come within `seconds`.

        Raises ProtocolError for what cannot be read, ServerError if a server refuses the connection.
        """
        ready = dict(self._poller.poll(math.ceil(max(0.0, seconds) * 1000)))
        for server, monitor in enumerate(self._monitors):
            while monitor in ready and monitor.poll(0):
                yield from self._take_event(server, recv_monitor_message(monitor))
        for server, socket in enumerate(self._sockets):
            while socket in ready:
                try:
                    frames = socket.recv_multipart(zmq.NOBLOCK, copy=False)
                except zmq.Again:
                    break
                answer = wire.decode_answer(frames[0].buffer)
                yield Incoming(server, answer, [frame.buffer for frame in frames[1:]])

    def close(self, linger_seconds: float) -> None:
        """Release everything; what is not sent after `linger_seconds` is dropped."""
        for socket in self._sockets:
            socket.close(linger=int(linger_seconds * 1000))
        for monitor in self._monitors:
            monitor.close(linger=0)
        self.context.term()

    def _take_event(self, server: int, told: Mapping[str, Any]) -> Iterator[Incoming]:
        event = told["event"]
        if event == _CONNECTED:
            send_unpaced(told["value"])
            return
        if event == _UP:
            self._failed[server] = 0
            if server in self._met:
                yield Incoming(server, Restored())
            self._met.add(server)
            return
        self._failed[server] += 1
        if event != zmq.Event.HANDSHAKE_FAILED_NO_DETAIL or self._failed[server] == _ATTEMPTS:
            raise self._refused(server, event)

    def _refused(self, server: int, event: int) -> ServerError:
        """Which side notices first that keys do not fit is a matter of chance: only one case is told by the server."""
        why = "without keys: it demands them"
        if self._credentials is not None:
            why = "with keys: it has none, or others than server.key here says"
        if event == zmq.Event.HANDSHAKE_FAILED_AUTH:
            why = "with keys: it knows no tenant that has them"
        return ServerError(
            f"{self.addresses[server]} refused a connection {why}; "
            "set HYBRIDPS_KEYS to the folder that `hybridps keys` made for this tenant and this server"
        )

    def _connect(self, address: str) -> None:
        socket = self.context.socket(zmq.DEALER)
        self._sockets.append(socket)
        # What waits to be sent is the caller's memory, not a copy: there is nothing to bound.
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.MAXMSGSIZE, wire.LARGEST_CHUNK_BYTES)
        if self._credentials is not None:
            self._credentials.secure(socket)
        monitor = socket.get_monitor_socket(_CONNECTED | _UP | _FAILED)
        self._monitors.append(monitor)
        self._poller.register(monitor, zmq.POLLIN)
        try:
            socket.connect(address)
        except zmq.ZMQError as error:
            raise ServerError(
                f"{address!r} is no address of a server: {error.strerror}; write it like tcp://127.0.0.1:5555"
            ) from None
        self._poller.register(socket, zmq.POLLIN)
