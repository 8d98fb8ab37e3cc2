"""The server's socket: messages in, answers out, and a guard against connections that send without end."""

from __future__ import annotations

import contextlib
import logging
import os
import socket as sockets
import struct
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import zmq

from hybridps.ps import wire
from hybridps.ps.keys import AllowList
from hybridps.ps.server.door import Gatekeeper, check_local, listen

log = logging.getLogger("hybridps.ps")

_GUARD_SECONDS = 0.05
"""Between two looks at what connections have sent."""

_UNFINISHED_BYTES = 32 << 20
"""Of one message that is not complete, beside two of the largest chunks: a client sends messages of about 4 MB."""

_BYTES_RECEIVED = 128
"""Offset of the number of bytes received in Linux's struct tcp_info."""


class Transport:
    """Serves at `address` from construction on. Used by the loop alone; `wake` may be called by any thread.

    Raises ServerError if the address cannot be used, or is beyond this host without keys and not `insecure`.
    """

    def __init__(
        self,
        address: str,
        *,
        allowed: AllowList | None,
        insecure: bool,
        largest_message_bytes: int,
        io_threads: int,
        context: Any = None,
    ) -> None:
        if not insecure and allowed is None:
            check_local(address)
        self.unread: set[bytes] = set()
        """Clients that do not read their answers."""
        self._skips = False
        """Whether the rest of a message with too many frames is to be read and forgotten."""
        self.reads = 0
        """Messages that were read."""
        self._owns_context = context is None
        self._context: Any = zmq.Context(io_threads=io_threads) if context is None else context
        self.door = Gatekeeper(self._context, allowed)
        try:
            self._socket: Any = listen(self._context, address, largest_message_bytes, allowed)
        except BaseException:
            self.door.close()
            self._end_context()
            raise
        self.door.attend(self._socket)
        self._guard = Guard()
        self._wake_out, self._wake_in = os.pipe()
        self.address: str = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        """Where clients find it, with the actual port."""

    def register(self, poller: zmq.Poller) -> None:
        """Have `poller` wake up when there is something to do."""
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._wake_out, zmq.POLLIN)
        self.door.watch(poller)

    def receive(self) -> list[Any] | None:
        """The frames of the next message, the sender's first, if one waits; of a message with too many frames, a few
        more than it may have, and the others are skipped."""
        if not self._can_read() or (self._skips and not self._skip()):
            self._guard.look(self.door.connections)
            return None
        frame = self._socket.recv(zmq.NOBLOCK, copy=False)
        frames = [frame]
        while frame.more and not self._skips:
            frame = self._socket.recv(zmq.NOBLOCK, copy=False)
            frames.append(frame)
            self._skips = frame.more and len(frames) == wire.MOST_CHUNKS + 3
        self.reads += 1
        identity = frames[0].bytes
        if identity not in self._guard.heard:
            self._guard.delivered(identity, frames[-1])
        return frames

    def _can_read(self) -> bool:
        return bool(self._socket.getsockopt(zmq.EVENTS) & zmq.POLLIN)

    def _skip(self) -> bool:
        """Read on in a message with too many frames, a bounded number at a time; whether another message waits."""
        for _ in range(wire.MOST_CHUNKS):
            self._skips = self._socket.recv(zmq.NOBLOCK, copy=False).more
            if not self._skips:
                return self._can_read()
        return False

    def expect(self, chunk_bytes: int) -> None:
        """There is a table with chunks of this size."""
        self._guard.most_bytes = max(self._guard.most_bytes, _UNFINISHED_BYTES + 2 * chunk_bytes)

    def send(self, identity: bytes, message: wire.Message, values: Sequence[np.ndarray | None] = ()) -> None:
        """Send a message, and the values from where they lie."""
        # Not copied, however small: what the client has not read stays charged to its tenant.
        payloads = [
            zmq.Frame(array.view(np.uint8).data, copy=False, copy_threshold=0) for array in values if array is not None
        ]
        try:
            self._socket.send_multipart([identity, wire.encode(message), *payloads], zmq.NOBLOCK, copy=not payloads)
        except zmq.Again:
            self.unread.add(identity)
        except zmq.ZMQError as error:
            log.debug("an answer could not be sent: %s", error)

    @property
    def closed(self) -> bool:
        return bool(self._socket.closed)

    def wake(self) -> None:
        """Have the poller wake up."""
        if not self._socket.closed:
            os.write(self._wake_in, b"s")

    def close(self) -> None:
        """Release the address. Only once."""
        self.door.close()
        self._socket.close(linger=500)
        self._end_context()
        os.close(self._wake_out)
        os.close(self._wake_in)

    def _end_context(self) -> None:
        if self._owns_context:
            self._context.term()


class Guard:
    """Ends TCP connections that send a message without end: ZeroMQ keeps it in memory, and never hands it over."""

    def __init__(self) -> None:
        self.most_bytes = _UNFINISHED_BYTES
        self._began: dict[int, int] = {}
        """Of each connection, by its descriptor, the bytes that it had sent before the message under way."""
        self.heard: set[bytes] = set()
        """Clients whose messages came since the last look."""
        self._delivered: set[int] = set()
        """Their connections."""
        self._looked_seconds = 0.0

    def delivered(self, identity: bytes, frame: Any) -> None:
        """A message of a client was read."""
        self.heard.add(identity)
        with contextlib.suppress(zmq.ZMQError):
            self._delivered.add(frame.get(zmq.SRCFD))

    def look(self, connections: set[int]) -> None:
        """No complete message waits: end connections that have sent more than `most_bytes` of an incomplete one."""
        now = time.monotonic()
        if now < self._looked_seconds + _GUARD_SECONDS:
            return
        self._looked_seconds = now
        for descriptor in [*connections]:
            with contextlib.suppress(OSError), sockets.socket(fileno=os.dup(descriptor)) as tcp:
                if tcp.family not in (sockets.AF_INET, sockets.AF_INET6):
                    continue
                info = tcp.getsockopt(sockets.IPPROTO_TCP, sockets.TCP_INFO, _BYTES_RECEIVED + 8)
                (received,) = struct.unpack_from("<Q", info, _BYTES_RECEIVED)
                if descriptor in self._delivered or received < self._began.get(descriptor, 0):
                    self._began[descriptor] = received
                elif received - self._began.setdefault(descriptor, 0) > self.most_bytes:
                    log.warning("a message of more than %d bytes without end: its connection is ended", self.most_bytes)
                    tcp.shutdown(sockets.SHUT_RDWR)
                    connections.discard(descriptor)
        self._delivered.clear()
        self.heard.clear()
