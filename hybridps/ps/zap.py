"""Who may connect: a server's answers to ZeroMQ's questions (ZAP, rfc.zeromq.org/spec/27), and who came or failed.

Asked and answered in the server's own thread.
"""

from __future__ import annotations

import logging
import time
from typing import Any

import zmq
from zmq.utils import z85
from zmq.utils.monitor import recv_monitor_message

from hybridps.ps.keys import AllowList
from hybridps.ps.loopback import send_unpaced

log = logging.getLogger("hybridps.ps")

_ACCEPTED = int(zmq.Event.ACCEPTED)
_FAILED = int(zmq.Event.HANDSHAKE_FAILED_PROTOCOL | zmq.Event.HANDSHAKE_FAILED_NO_DETAIL)
_WRONG_KEY = 0x11000001  # ZMQ_PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC
_QUIET_SECONDS = 1.0
"""Between two lines about refused connections."""


class Doorkeeper:
    """Lets the tenants of an allow-list in, and counts the others. Without an allow-list anybody may come."""

    def __init__(self, context: Any, allowed: AllowList | None) -> None:
        self.allowed = allowed
        self.refused = 0
        """Connections that were refused or failed."""
        self._told_seconds = float("-inf")
        self._questions: Any = context.socket(zmq.REP)
        self._questions.linger = 0
        self._questions.bind("inproc://zeromq.zap.01")
        self._events: Any = None

    def attend(self, socket: Any) -> None:
        """Keep who comes to the server's socket from now on: before anybody knows its address."""
        self._events = socket.get_monitor_socket(_ACCEPTED | _FAILED)

    def watch(self, poller: zmq.Poller) -> None:
        """Have `poller` wake up when `serve` has something to do."""
        poller.register(self._questions, zmq.POLLIN)
        poller.register(self._events, zmq.POLLIN)

    def serve(self) -> None:
        """Answer the questions that wait."""
        while self._questions.getsockopt(zmq.EVENTS) & zmq.POLLIN:
            self._answer(self._questions.recv_multipart())
        while self._events.getsockopt(zmq.EVENTS) & zmq.POLLIN:
            happened = recv_monitor_message(self._events)
            if happened["event"] == _ACCEPTED:
                send_unpaced(happened["value"])
            else:
                self.tell(self._why_failed(happened["value"]))

    def key_of(self, frame: Any) -> str:
        """The public key of the connection that a frame came by; empty without keys."""
        return str(frame.get("User-Id")) if self.allowed is not None else ""

    def close(self) -> None:
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
