"""The socket that a server listens on: who may connect, and which connections are ended.

ZeroMQ asks who may connect (ZAP, rfc.zeromq.org/spec/27). The loop answers, and counts those that fail.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket as sockets
import struct
import time
from collections.abc import Container
from typing import Any

import zmq
from zmq.utils import z85
from zmq.utils.monitor import recv_monitor_message

from hybridps.addresses import is_local
from hybridps.errors import ServerError
from hybridps.ps import wire
from hybridps.ps.keys import AllowList
from hybridps.ps.zmq_sockets import Context, has_message, monitor_of, send_unpaced

log = logging.getLogger("hybridps.ps")

_ACCEPTED = int(zmq.Event.ACCEPTED)
_ENDED = int(zmq.Event.DISCONNECTED)
_FAILED = int(zmq.Event.HANDSHAKE_FAILED_PROTOCOL | zmq.Event.HANDSHAKE_FAILED_NO_DETAIL)
_WRONG_KEY = 0x11000001  # ZMQ_PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC
_QUIET_SECONDS = 10.0
"""The shortest time between two lines about refused connections."""

_LOOK_SECONDS = 0.05
"""The shortest time between two checks of what connections have sent."""

_UNFINISHED_BYTES = 32 << 20
"""The limit for one incomplete message, on top of two of the largest chunks. A client sends messages of about 4 MB."""

_TCP = sockets.AF_INET, sockets.SOCK_STREAM, sockets.IPPROTO_TCP
_BYTES_RECEIVED = 128
"""The offset of the number of received bytes in Linux's struct tcp_info."""

_END_SECONDS = 5.0
"""The longest time to end all connections."""

MOST_UNREAD = 1 << 16
"""The number of answers that may wait for one connection. A client with more is treated as lost."""


class Gatekeeper:
    """Listens at `address`, and lets in the tenants of an allow-list; without one, everybody. Counts refusals.

    It ends TCP connections that send a message without end, which ZeroMQ would keep in memory and never deliver. Raises
    ServerError if the address cannot be used, or is beyond this host without keys and not `insecure`.
    """

    def __init__(
        self, address: str, allowed: AllowList | None, insecure: bool, io_threads: int, context: Any = None
    ) -> None:
        if not insecure and allowed is None:
            _check_local(address)
        self.refused = 0
        """The number of connections that were refused or failed."""
        self.heard: dict[bytes, int] = {}
        """The clients whose messages were read since the last check, with the descriptors of their connections."""
        self._allowed = allowed
        self._told_seconds = self._looked_seconds = float("-inf")
        self._most_bytes = _UNFINISHED_BYTES
        self._connections: dict[int, int] = {}
        """By descriptor, the bytes that a connection had received when its message began. Some may be closed by now."""
        self._owns_context = context is None
        self.context: Any = Context(io_threads=io_threads) if context is None else context
        self._questions: Any = None if allowed is None else self.context.socket(zmq.REP)
        self.socket: Any = self.context.socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.MAXMSGSIZE, wire.LARGEST_CHUNK_BYTES)
        self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        # Few messages of each connection, because messages that were read wait in the accounts of the tenants.
        self.socket.setsockopt(zmq.RCVHWM, 64)
        # A router drops messages over this mark, which is far more than a group that reads its answers leaves waiting.
        self.socket.setsockopt(zmq.SNDHWM, MOST_UNREAD)
        # This comes before the address is known to anybody.
        self._events: Any = monitor_of(self.socket, _ACCEPTED | _ENDED | _FAILED)
        try:
            if self._questions is not None and allowed is not None:
                self._questions.bind("inproc://zeromq.zap.01")
                allowed.secure(self.socket)
            self.socket.bind(address)
        except zmq.ZMQError as error:
            self.close()
            raise ServerError(f"cannot serve at {address}: {error.strerror or error}; use another address") from None

    @property
    def polled(self) -> list[Any]:
        """The sockets that wake the loop."""
        return [each for each in (self.socket, self._events, self._questions) if each is not None]

    def serve(self, ready: Container[Any]) -> None:
        """Answer waiting questions about connections, and note their events. `ready`: those of `polled` to look at."""
        while self._questions in ready and has_message(self._questions):
            self._answer(self._questions.recv_multipart())
        while self._events in ready and has_message(self._events):
            happened = recv_monitor_message(self._events)
            if happened["event"] == _ACCEPTED:
                send_unpaced(happened["value"])
                self._connections[happened["value"]] = 0
            elif happened["event"] == _ENDED:
                self._connections.pop(happened["value"], None)
            elif happened["value"] == _WRONG_KEY:
                self.refuse("a client has another key of this server")
            else:
                keys = "without keys" if self._allowed is not None else "with keys, of which this server has none"
                self.refuse(f"a client came {keys}, or broke off")

    def key_of(self, frame: Any) -> str:
        """Return the public key of the connection that a frame came from; empty without keys."""
        return str(frame.get("User-Id")) if self._allowed is not None else ""

    def refuse(self, why: str) -> None:
        """Count a refused connection, and log it from time to time."""
        self.refused += 1
        if time.monotonic() >= self._told_seconds + _QUIET_SECONDS:
            self._told_seconds = time.monotonic()
            log.warning("refused a connection (%d so far): %s", self.refused, why)

    def expect(self, chunk_bytes: int) -> None:
        """Allow for a table with chunks of this size."""
        self._most_bytes = max(self._most_bytes, _UNFINISHED_BYTES + 2 * chunk_bytes)

    def hear(self, identity: bytes, frame: Any) -> None:
        """Note the first message of a client since the last check."""
        self.heard[identity] = -1
        with contextlib.suppress(zmq.ZMQError):
            self.heard[identity] = frame.get(zmq.SRCFD)

    def look(self) -> None:
        """End connections that have sent too much of an incomplete message. Called when no complete message waits."""
        now = time.monotonic()
        if now < self._looked_seconds + _LOOK_SECONDS:
            return
        self._looked_seconds = now
        heard = {*self.heard.values()}
        self.heard.clear()
        for descriptor, began in [*self._connections.items()]:
            # The family is not looked up, which would take most of the time: any other socket fails at the next line.
            with contextlib.suppress(OSError), sockets.socket(*_TCP, fileno=os.dup(descriptor)) as tcp:
                info = tcp.getsockopt(sockets.IPPROTO_TCP, sockets.TCP_INFO, _BYTES_RECEIVED + 8)
                (received,) = struct.unpack_from("<Q", info, _BYTES_RECEIVED)
                if descriptor in heard or received < began:
                    self._connections[descriptor] = received
                elif received - began > self._most_bytes:
                    log.warning(
                        "a message has more than %d bytes and does not end: its connection is closed", self._most_bytes
                    )
                    # A reset reports the end: after a normal close, a peer whose window is closed would keep waiting.
                    tcp.setsockopt(sockets.SOL_SOCKET, sockets.SO_LINGER, struct.pack("ii", 1, 0))
                    tcp.shutdown(sockets.SHUT_RDWR)
                    del self._connections[descriptor]

    def close(self) -> None:
        """Release the address, in bounded time. Call this only once."""
        for each in self.polled:
            each.close(linger=500 if each is self.socket else 0)
        if self._owns_context and not self.context.end(_END_SECONDS):
            log.warning("ZeroMQ has not ended after %g s", _END_SECONDS)

    def _answer(self, question: list[bytes]) -> None:
        version, number, _, address, _, mechanism, *keys = question
        key = z85.encode(keys[0]) if mechanism == b"CURVE" and keys else b""
        known = self._allowed is not None and key.decode() in self._allowed.tenants
        if not known:
            self.refuse(f"a client at {address.decode()} has the key {key.decode()}, which is no tenant's")
        status = (b"200", b"", key) if known else (b"400", b"no tenant has this key", b"")
        self._questions.send_multipart([version, number, *status, b""])


def _check_local(address: str) -> None:
    """Raise ServerError if an address can be reached from other hosts."""
    if is_local(address):
        return
    raise ServerError(
        f"{address} can be reached from other hosts, and nothing says who may connect: make keys with `hybridps keys`, "
        "bind to tcp://127.0.0.1:*, or give insecure=True (--insecure) in a network that you trust"
    )
