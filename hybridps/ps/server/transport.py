"""The server's socket: messages in, answers out."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import zmq

from hybridps.ps import wire
from hybridps.ps.server.door import Gatekeeper
from hybridps.ps.zmq_sockets import has_message

log = logging.getLogger("hybridps.ps")

# As integers, because the operations of ZeroMQ's flags would take as long as a small frame.
_LAST, _MORE = int(zmq.NOBLOCK), int(zmq.NOBLOCK | zmq.SNDMORE)


class Transport:
    """Sends and receives messages through the socket at a server's `door`. Only the loop uses it."""

    def __init__(self, door: Gatekeeper) -> None:
        self.door = door
        self.unread: set[bytes] = set()
        """Clients that do not read their answers."""
        self.reads = 0
        """The number of messages that were read."""
        self._socket = door.socket
        self._skips = False
        """Whether the rest of a message with too many frames must be read and dropped."""

    def receive(self) -> tuple[bytes, list[Any]] | None:
        """Return the next message, if one waits: its sender and its frames. Frames beyond the limit are skipped.

        The remaining frames are skipped later, a bounded number at a time.
        """
        for _ in range(wire.MOST_CHUNKS if self._skips else 0):
            self._skips = self._skips and self._socket.recv(zmq.NOBLOCK, copy=False).more
        if self._skips or not has_message(self._socket):
            self.door.look()
            return None
        frame = self._socket.recv(zmq.NOBLOCK, copy=False)
        identity, frames = frame.bytes, []
        while frame.more and not self._skips:
            frame = self._socket.recv(zmq.NOBLOCK, copy=False)
            frames.append(frame)
            self._skips = frame.more and len(frames) == wire.MOST_CHUNKS + 2
        self.reads += 1
        if identity not in self.door.heard:
            self.door.hear(identity, frame)
        return identity, frames

    def send(self, identity: bytes, message: wire.Message, values: Sequence[np.ndarray | None] = ()) -> None:
        """Send a message, with values from where they lie."""
        # Not copied, however small, so that what the client has not read stays charged to its tenant.
        payloads = [
            zmq.Frame(array.view(np.uint8).data, copy=False, copy_threshold=0) for array in values if array is not None
        ]
        try:
            self._socket.send(identity, _MORE)
            self._socket.send(wire.encode(message), _MORE if payloads else _LAST)
            for number, payload in enumerate(payloads, 1):
                self._socket.send(payload, _MORE if number < len(payloads) else _LAST, copy=False)
        except zmq.Again:
            self.unread.add(identity)
        except zmq.ZMQError as error:
            log.debug("an answer could not be sent: %s", error)
