"""The client's sockets to its servers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import zmq

from hybridps.errors import ServerError
from hybridps.ps import wire


class Incoming(NamedTuple):
    """A message of a server; `payload` is valid as long as it is held."""

    server: int
    answer: wire.Answer
    payload: memoryview | None


class Links:
    """One socket for each address, and the context they live in. Raises ServerError for an unusable address."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self.addresses = tuple(addresses)
        self.context: Any = zmq.Context()
        self._poller = zmq.Poller()
        self._sockets: list[Any] = []
        try:
            for address in self.addresses:
                self._connect(address)
        except BaseException:
            self.close(0.0)
            raise

    def __len__(self) -> int:
        return len(self.addresses)

    def send(self, server: int, message: wire.Message, payload: np.ndarray | None = None) -> None:
        """Hand a message to the transport. `payload` is not copied: it may not change until it is answered."""
        frames: list[Any] = [wire.encode(message)]
        if payload is not None:
            frames.append(payload.view(np.uint8).data)
        self._sockets[server].send_multipart(frames, copy=False)

    def receive(self, seconds: float) -> Iterator[Incoming]:
        """The messages that are there, or come within `seconds`. Raises ProtocolError for what cannot be read."""
        ready = dict(self._poller.poll(math.ceil(max(0.0, seconds) * 1000)))
        for server, socket in enumerate(self._sockets):
            while socket in ready:
                try:
                    frames = socket.recv_multipart(zmq.NOBLOCK, copy=False)
                except zmq.Again:
                    break
                answer = wire.decode_answer(frames[0].buffer)
                yield Incoming(server, answer, frames[1].buffer if len(frames) > 1 else None)

    def close(self, linger_seconds: float) -> None:
        """Release everything; what is not sent after `linger_seconds` is dropped."""
        for socket in self._sockets:
            socket.close(linger=int(linger_seconds * 1000))
        self.context.term()

    def _connect(self, address: str) -> None:
        socket = self.context.socket(zmq.DEALER)
        self._sockets.append(socket)
        # What waits to be sent is the caller's memory, not a copy: there is nothing to bound.
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.MAXMSGSIZE, wire.LARGEST_CHUNK_BYTES)
        try:
            socket.connect(address)
        except zmq.ZMQError as error:
            raise ServerError(
                f"{address!r} is no address of a server: {error.strerror}; write it like tcp://127.0.0.1:5555"
            ) from None
        self._poller.register(socket, zmq.POLLIN)
