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
"""So many failed handshakes in a row are a refusal. A single one may be a connection that broke."""


class Received(NamedTuple):
    """A message of a server; `payloads` are valid as long as they are held.

    `answer` is None if the connection was lost and is restored: what was under way may have been lost with it.
    """

    server: int
    answer: wire.Answer | None
    payloads: Sequence[memoryview] = ()


class Sockets:
    """One socket for each address, in a ZeroMQ `context` of their own, or one that is given.

    Raises ServerError for an unusable address. With `credentials` everything is encrypted, and both sides know each
    other.
    """

    def __init__(
        self, addresses: Sequence[str], credentials: Credentials | None = None, context: zmq.Context[Any] | None = None
    ) -> None:
        keep_message_memory()
        self.addresses = tuple(addresses)
        self._credentials = credentials
        self._owns_context = context is None
        self.context: Any = context or zmq.Context()
        self._poller = zmq.Poller()
        self._sockets: list[Any] = []
        self._monitors: list[Any] = []
        self._connected: set[int] = set()
        """Servers that there was a connection with before."""
        self._failed = [0] * len(self.addresses)
        try:
            for address in self.addresses:
                self._connect(address)
        except BaseException:
            self.close(0.0)
            raise

    def send(self, server: int, message: wire.Message, payloads: Sequence[np.ndarray] = ()) -> None:
        """Hand a message to the transport. Payloads are not copied: they may not change until the answer is there."""
        frames = [wire.encode(message), *(payload.view(np.uint8).data for payload in payloads)]
        self._sockets[server].send_multipart(frames, copy=not payloads)

    def wake_by(self, descriptor: int) -> None:
        """Have `receive` return when that descriptor can be read."""
        self._poller.register(descriptor, zmq.POLLIN)

    def receive(self, seconds: float) -> Iterator[Received]:
        """The messages that are there, or arrive within `seconds`.

        Raises ProtocolError for a message that cannot be read, ServerError if a server refuses the connection.
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
                yield Received(server, answer, [frame.buffer for frame in frames[1:]])

    def close(self, linger_seconds: float) -> None:
        """Release everything; messages that are not sent after `linger_seconds` are dropped."""
        for socket in self._sockets:
            socket.close(linger=int(linger_seconds * 1000))
        for monitor in self._monitors:
            monitor.close(linger=0)
        if self._owns_context:
            self.context.term()

    def _take_event(self, server: int, told: Mapping[str, Any]) -> Iterator[Received]:
        event = told["event"]
        if event == _CONNECTED:
            send_unpaced(told["value"])
            return
        if event == _UP:
            self._failed[server] = 0
            if server in self._connected:
                yield Received(server, None)
            self._connected.add(server)
            return
        self._failed[server] += 1
        if event != zmq.Event.HANDSHAKE_FAILED_NO_DETAIL or self._failed[server] == _ATTEMPTS:
            raise self._refused(server, event)

    def _refused(self, server: int, event: int) -> ServerError:
        """Which side notices first that keys do not fit is a matter of chance: the server reports one case only."""
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
        # Messages that wait to be sent are the caller's memory, not copies: there is nothing to bound.
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
