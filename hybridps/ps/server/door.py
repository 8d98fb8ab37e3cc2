"""The socket that a server listens on, and who may connect.

ZeroMQ asks who may (ZAP, rfc.zeromq.org/spec/27); the loop answers, and counts who failed.
"""

from __future__ import annotations

import logging
import os
import time
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

import zmq
from zmq.utils import z85
from zmq.utils.monitor import recv_monitor_message

from hybridps.errors import ServerError
from hybridps.ps.keys import AllowList
from hybridps.ps.loopback import send_unpaced

log = logging.getLogger("hybridps.ps")

_ACCEPTED = int(zmq.Event.ACCEPTED)
_ENDED = int(zmq.Event.DISCONNECTED)
_FAILED = int(zmq.Event.HANDSHAKE_FAILED_PROTOCOL | zmq.Event.HANDSHAKE_FAILED_NO_DETAIL)
_WRONG_KEY = 0x11000001  # ZMQ_PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC
_QUIET_SECONDS = 1.0
"""Between two lines about refused connections."""


MOST_UNREAD = 1 << 16
"""Answers that wait for one connection: whoever reads none is taken as lost then."""


class Gatekeeper:
    """Lets the tenants of an allow-list in, and counts the others. Without an allow-list anybody may come."""

    def __init__(self, context: Any, allowed: AllowList | None) -> None:
        self.allowed = allowed
        self.refused = 0
        """Connections that were refused or failed."""
        self._told_seconds = float("-inf")
        self.connections: set[int] = set()
        """Descriptors of the connections that were accepted; some may be closed by now."""
        self._questions: Any = None
        self._events: Any = None
        if allowed is not None:
            self._questions = context.socket(zmq.REP)
            self._questions.linger = 0
            self._questions.bind("inproc://zeromq.zap.01")

    def attend(self, socket: Any) -> None:
        """Keep who comes to the server's socket from now on: before anybody knows its address."""
        self._events = socket.get_monitor_socket(_ACCEPTED | _ENDED | _FAILED)

    def watch(self, poller: zmq.Poller) -> None:
        """Have `poller` wake up when `serve` has something to do."""
        if self._questions is not None:
            poller.register(self._questions, zmq.POLLIN)
        poller.register(self._events, zmq.POLLIN)

    def serve(self) -> None:
        """Answer the questions that wait."""
        while self._questions is not None and self._questions.getsockopt(zmq.EVENTS) & zmq.POLLIN:
            self._answer(self._questions.recv_multipart())
        while self._events.getsockopt(zmq.EVENTS) & zmq.POLLIN:
            happened = recv_monitor_message(self._events)
            if happened["event"] == _ACCEPTED:
                send_unpaced(happened["value"])
                self.connections.add(happened["value"])
            elif happened["event"] == _ENDED:
                self.connections.discard(happened["value"])
            else:
                self.tell(self._why_failed(happened["value"]))

    def key_of(self, frame: Any) -> str:
        """The public key of the connection that a frame came by; empty without keys."""
        return str(frame.get("User-Id")) if self.allowed is not None else ""

    def close(self) -> None:
        if self._questions is not None:
            self._questions.close()
        if self._events is not None:
            self._events.close(linger=0)

    def _why_failed(self, value: int) -> str:
        if value == _WRONG_KEY:
            return "a client has another key of this server"
        keys = "without keys" if self.allowed is not None else "with keys, of which this server has none"
        return f"a client came {keys}, or broke off"

    def _answer(self, question: list[bytes]) -> None:
        version, number, _, address, _, mechanism, *keys = question
        key = z85.encode(keys[0]) if mechanism == b"CURVE" and keys else b""
        known = self.allowed is not None and key.decode() in self.allowed.tenants
        if not known:
            self.tell(f"a client at {address.decode()} has the key {key.decode()}, which is no tenant's")
        status = (b"200", b"", key) if known else (b"400", b"no tenant has this key", b"")
        self._questions.send_multipart([version, number, *status, b""])

    def tell(self, why: str) -> None:
        """A connection was refused: count it, and say so once in a while."""
        self.refused += 1
        if time.monotonic() >= self._told_seconds + _QUIET_SECONDS:
            self._told_seconds = time.monotonic()
            log.warning("refused a connection (%d so far): %s", self.refused, why)


def check_local(address: str) -> None:
    """Raise ServerError if an address can be reached from other hosts."""
    if not _is_local(address):
        raise ServerError(
            f"{address} can be reached from other hosts, and nothing tells who may: make keys with `hybridps keys`, "
            "bind to tcp://127.0.0.1:*, or give insecure=True (--insecure) in a network that you trust"
        )


def memory_of_host() -> int:
    """Bytes."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def listen(context: Any, address: str, largest_message_bytes: int, allowed: AllowList | None = None) -> Any:
    """The socket, which demands keys if there are any allowed. Raises ServerError if it cannot be had."""
    socket = context.socket(zmq.ROUTER)
    socket.setsockopt(zmq.MAXMSGSIZE, largest_message_bytes)
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    # Few messages of each connection: what is read waits in the accounts of the tenants.
    socket.setsockopt(zmq.RCVHWM, 64)
    # A router drops what is over the mark: far more than a group that reads leaves waiting, whose values are counted.
    socket.setsockopt(zmq.SNDHWM, MOST_UNREAD)
    if allowed is not None:
        allowed.secure(socket)
    try:
        socket.bind(address)
    except zmq.ZMQError as error:
        socket.close(linger=0)
        raise ServerError(f"cannot serve at {address}: {error.strerror or error}; use another address") from None
    return socket


def _is_local(address: str) -> bool:
    parts = urlsplit(address)
    try:
        return (
            parts.scheme in ("ipc", "inproc")
            or parts.hostname == "localhost"
            or ip_address(parts.hostname or "").is_loopback
        )
    except ValueError:
        return False
