"""The client's sockets to its servers: how they are opened, and what happens to their connections."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from hybridps.errors import ServerError
from hybridps.memory import keep_message_memory
from hybridps.ps import wire
from hybridps.ps.keys import Credentials
from hybridps.ps.zmq_sockets import Context, monitor_of, send_unpaced

_CONNECTED = int(zmq.Event.CONNECTED)
_UP = int(zmq.Event.HANDSHAKE_SUCCEEDED)
_FAILED = int(
    zmq.Event.HANDSHAKE_FAILED_AUTH | zmq.Event.HANDSHAKE_FAILED_PROTOCOL | zmq.Event.HANDSHAKE_FAILED_NO_DETAIL
)
_CONNECT_MILLISECONDS = 3000
"""The longest time of one attempt to connect. The kernel would retry ever more rarely while a network is cut."""

_END_SECONDS = 2.0
"""The longest time to end all connections when nothing is left to be sent."""

_ATTEMPTS = 3
"""The number of failed handshakes in a row that count as a refusal, by a server that was never connected. A single one
may be a broken connection. A server that is killed may break many while its process ends."""


class Sockets:
    """One socket for each address, in a ZeroMQ context of their own, or in `context` if it is not None.

    With `credentials` everything is encrypted, and both sides authenticate each other. Raises ServerError for an
    unusable address.
    """

    def __init__(self, addresses: Sequence[str], credentials: Credentials | None, context: Any) -> None:
        keep_message_memory()
        self._context = context or Context()
        self.poller = zmq.Poller()
        """Polls all sockets and monitors."""
        self.sockets: list[Any] = []
        self.monitors: list[Any] = []
        """The monitor of each socket's connection, which `is_restored` reads."""
        self.addresses = addresses
        self._credentials = credentials
        self._owns_context = context is None
        self._connected: set[int] = set()
        """Servers to which there was a connection before."""
        self._failed = [0] * len(addresses)
        try:
            for address in addresses:
                self._open(address)
        except BaseException:
            self.close(0.0)
            raise

    def is_restored(self, server: int) -> bool:
        """Read one event of a monitor. Returns whether a lost connection is restored.

        What was under way may have been lost with the old connection. Raises ServerError if the server refuses
        connections.
        """
        told = recv_monitor_message(self.monitors[server])
        event = told["event"]
        if event == _CONNECTED:
            send_unpaced(told["value"])
        elif event == _UP:
            self._failed[server] = 0
            if server in self._connected:
                return True
            self._connected.add(server)
        else:
            self._failed[server] += 1
            is_new = server not in self._connected
            if event != zmq.Event.HANDSHAKE_FAILED_NO_DETAIL or (is_new and self._failed[server] == _ATTEMPTS):
                raise self._refused(server, event)
        return False

    def send(self, server: int, frames: Sequence[Any], copy: bool = True) -> None:
        """Send a message. Unless `copy`, its memory must not change until the answer arrives.

        ZeroMQ gives up a connection whose handshake broke the protocol, for example because the server has no keys.
        The message is then lost, as with any lost connection, and `is_restored` raises an error.
        """
        with contextlib.suppress(zmq.Again):  # without a connection, ZeroMQ would wait forever
            self.sockets[server].send_multipart(frames, zmq.NOBLOCK, copy=copy)

    def make(self, most_unsent: int, most_bytes: int) -> Any:
        """Make a socket that keeps `most_unsent` messages (0: all), and accepts messages of up to `most_bytes`."""
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.SNDHWM, most_unsent)
        socket.setsockopt(zmq.MAXMSGSIZE, most_bytes)
        socket.setsockopt(zmq.CONNECT_TIMEOUT, _CONNECT_MILLISECONDS)
        socket.setsockopt(zmq.LINGER, 0)  # for connections that are given up; `close` sets its own
        if self._credentials is not None:
            self._credentials.secure(socket)
        return socket

    def connect_anew(self, server: int) -> None:
        """Replace a connection by a new one, which then counts as restored. What was not sent yet is lost."""
        if self.addresses[server].startswith("tcp://"):
            self.sockets[server].disconnect(self.addresses[server])
            self.sockets[server].connect(self.addresses[server])

    def close(self, linger_seconds: float) -> None:
        """Release all resources. Messages that are not sent after `linger_seconds` are dropped."""
        for socket in self.sockets:
            socket.close(linger=int(linger_seconds * 1000))
        for monitor in self.monitors:
            monitor.close(linger=0)
        if self._owns_context:
            self._context.end(linger_seconds + _END_SECONDS)

    def _refused(self, server: int, event: int) -> ServerError:
        """Return the error for keys that do not match. Chance decides which side notices first."""
        why = "without keys: it demands them"
        if self._credentials is not None:
            why = "with keys: it has none, or others than server.key here says"
        if event == zmq.Event.HANDSHAKE_FAILED_AUTH:
            why = "with keys: it knows no tenant that has them"
        return ServerError(
            f"{self.addresses[server]} refused a connection {why}; "
            "set HYBRIDPS_KEYS to the folder that `hybridps keys` made for this tenant and this server"
        )

    def _open(self, address: str) -> None:
        # Messages that wait to be sent are the caller's memory, not copies, so there is no need for a limit.
        socket = self.make(0, wire.LARGEST_CHUNK_BYTES)
        self.sockets.append(socket)
        self.monitors.append(monitor_of(socket, _CONNECTED | _UP | _FAILED))
        try:
            socket.connect(address)
        except zmq.ZMQError as error:
            raise ServerError(
                f"{address!r} is not an address of a server: {error.strerror}; write it like tcp://127.0.0.1:5555"
            ) from None
        self.poller.register(self.monitors[-1], zmq.POLLIN)
        self.poller.register(socket, zmq.POLLIN)
