"""Mail over ZeroMQ, between groups that are MPI worlds of their own.

Each leader listens at its address, through the same kind of socket as a server, and connects to all others. A message
is one frame with the sender's number and the header, followed by frames with the payload.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from ipaddress import ip_address
from typing import Any

import numpy as np
import zmq

from hybridps.errors import ServerError
from hybridps.gossip.letter import MOST_HEADER_BYTES
from hybridps.gossip.mail import Received
from hybridps.memory import keep_message_memory
from hybridps.ps.keys import AllowList, Credentials, Quotas, Tenant
from hybridps.ps.server.door import Gatekeeper
from hybridps.ps.server.transport import Transport

PIECE_BYTES = 1 << 27
"""A larger payload is sent in several frames."""

MOST_UNSENT = 32
"""The number of letters that may wait for one group. A group that does not read them gets no more."""

_SENDER = struct.Struct("<H")
_MOST_SKIPPED = 64
"""The number of unusable letters that one call of `receive` skips."""
_LINGER_SECONDS = 1.0


class SocketMail:
    """Mail over ZeroMQ. `Mail` documents the methods.

    `addresses`: those of all groups, in order; this group listens at its own. With `credentials` everything is
    encrypted, and only holders of the same credentials are let in. `context`: a ZeroMQ context to use; None makes a new
    one. Raises ServerError if the address cannot be used, or is beyond this host without credentials.
    """

    def __init__(
        self, addresses: Sequence[str], rank: int, credentials: Credentials | None = None, context: Any = None
    ) -> None:
        keep_message_memory()
        self.rank = rank
        self.size = len(addresses)
        self.refused = 0
        """The number of letters that were dropped because they cannot be from another group."""
        self._most_bytes = 1 << 20
        self._addresses = addresses
        self._credentials = None if credentials is None else _same_for_all(credentials)
        allowed = None if credentials is None else _members(credentials)
        self._door = Gatekeeper(_listening(addresses[rank]), allowed, False, 1, context)
        self._transport = Transport(self._door)
        self._sockets: dict[tuple[int, bool], Any] = {}
        """The sockets to each group: one for letters with a payload, and one for those without, which large ones must
        not delay."""
        try:
            for peer in range(self.size):
                for has_payload in (True, False) if peer != rank else ():
                    self._sockets[peer, has_payload] = self._connect(addresses[peer])
        except BaseException:
            self.close()
            raise

    def send(self, to: int, header: bytes, payload: np.ndarray | None) -> bool:
        frames: list[Any] = [_SENDER.pack(self.rank) + header]
        if payload is not None:
            data = payload.view(np.uint8)
            frames += [data[start : start + PIECE_BYTES].data for start in range(0, max(1, data.size), PIECE_BYTES)]
        try:
            self._sockets[to, payload is not None].send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def receive(self) -> Received | None:
        self._door.serve(self._door.polled)
        for _ in range(_MOST_SKIPPED):
            came = self._transport.receive()
            if came is None:
                return None
            received = self._read(came[1])
            if received is not None:
                return received
            self.refused += 1
        return None

    def expect(self, nbytes: int) -> None:
        self._most_bytes = max(self._most_bytes, nbytes)
        self._door.expect(self._most_bytes)

    def close(self) -> None:
        for socket in self._sockets.values():
            socket.close(linger=int(_LINGER_SECONDS * 1000))
        self._sockets.clear()
        self._door.close()

    def _connect(self, address: str) -> Any:
        socket = self._door.context.socket(zmq.DEALER)
        socket.setsockopt(zmq.SNDHWM, MOST_UNSENT)
        socket.setsockopt(zmq.MAXMSGSIZE, MOST_HEADER_BYTES)  # nobody answers over this connection
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 2000)
        if self._credentials is not None:
            self._credentials.secure(socket)
        try:
            socket.connect(address)
        except zmq.ZMQError as error:
            socket.close(linger=0)
            raise ServerError(
                f"{address!r} is not an address of a group: {error.strerror}; write it like tcp://127.0.0.1:5555"
            ) from None
        return socket

    def _read(self, frames: Sequence[Any]) -> Received | None:
        """Return the letter in these frames; None if they are no valid letter."""
        sizes = [len(frame) for frame in frames]
        if not sizes or not _SENDER.size < sizes[0] <= MOST_HEADER_BYTES:
            return None
        if sum(sizes[1:]) > self._most_bytes or len(sizes) > 2 + self._most_bytes // PIECE_BYTES:
            return None
        head = frames[0].bytes
        (sender,) = _SENDER.unpack_from(head)
        if sender >= self.size or sender == self.rank:
            return None
        pieces = [np.frombuffer(frame.buffer, np.uint8) for frame in frames[1:] if len(frame)]
        payload = None
        if len(frames) > 1:
            payload = pieces[0] if len(pieces) == 1 else np.concatenate([np.empty(0, np.uint8), *pieces])
        return sender, head[_SENDER.size :], payload


def _same_for_all(credentials: Credentials) -> Credentials:
    """Return the credentials to connect with. All groups use the tenant's key pair, also for listening."""
    return Credentials(
        credentials.tenant, credentials.token, credentials.public, credentials.secret, credentials.public
    )


def _members(credentials: Credentials) -> AllowList:
    """Return the allow-list to listen with. Holders of the tenant's key pair are let in."""
    return AllowList(credentials.public, credentials.secret, {credentials.public: Tenant("", Quotas(), "groups")})


def _listening(address: str) -> str:
    """Return where to listen so that others reach this address. ZeroMQ listens at IP addresses, not at host names."""
    scheme, _, place = address.partition("://")
    host, _, port = place.rpartition(":")
    if scheme != "tcp":
        return address
    if host == "localhost":
        return f"tcp://127.0.0.1:{port}"
    try:
        ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return f"tcp://*:{port}"
    return address
