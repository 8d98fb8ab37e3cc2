"""A server: the transport around a shard. One thread, one socket."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable
from ipaddress import ip_address
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import zmq

from hybridps.errors import HybridPSError, ProtocolError, ServerError
from hybridps.ps import wire
from hybridps.ps.members import Member, Members
from hybridps.ps.shard import Shard
from hybridps.ps.table import Done, Joined, Outcome, Ticket

log = logging.getLogger("hybridps.ps")

_MESSAGES_PER_LAP = 256
_LONGEST_LAP_SECONDS = 1.0


class Server:
    """Serves at `address` from construction on; `run` does the work, on one thread.

    `lost_seconds`: a group without sign of life for so long is lost. `stop_after_groups`: end when so many
    groups came and none is there any more. `memory_bytes` bounds all tables together (default: what this
    host has).
    Raises ServerError if the address cannot be used, or is beyond this host and not `insecure`.
    """

    def __init__(
        self,
        address: str = "tcp://127.0.0.1:*",
        *,
        lost_seconds: float = 10.0,
        stop_after_groups: int | None = None,
        memory_bytes: int | None = None,
        largest_message_bytes: int = wire.LARGEST_CHUNK_BYTES,
        insecure: bool = False,
    ) -> None:
        if not insecure:
            _check_local(address)
        self._lost_seconds = lost_seconds
        self._stop_after_groups = stop_after_groups
        self._shard = Shard(_memory_of_host() if memory_bytes is None else memory_bytes)
        self._members = Members(lost_seconds)
        self.refused = 0
        """Number of requests that were refused."""
        self._stopping = threading.Event()
        self._closing = threading.RLock()
        self._context: Any = zmq.Context()
        self._socket: Any = _listening(self._context, address, largest_message_bytes)
        self._wake_out, self._wake_in = os.pipe()
        self.address: str = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        """Where clients find it, with the actual port."""

    def run(self, until: Callable[[], bool] | None = None) -> None:
        """Serve until `stop` is called, `stop_after_groups` is reached, or `until()`, asked every second, is true.

        Closes the server.
        """
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._wake_out, zmq.POLLIN)
        lap_seconds = min(_LONGEST_LAP_SECONDS, self._lost_seconds / 4)
        try:
            while not self._stopping.is_set() and not self._finished() and not (until and until()):
                poller.poll(math.ceil(lap_seconds * 1000))
                if self._serve_waiting():
                    self._drop_silent()
        finally:
            self.close()

    def stop(self) -> None:
        """End `run` soon. May be called from any thread, and from a signal handler."""
        with self._closing:
            self._stopping.set()
            if not self._socket.closed:
                os.write(self._wake_in, b"s")

    def close(self) -> None:
        """Release the address. Only when `run` does not run; a second time does nothing."""
        with self._closing:
            if self._socket.closed:
                return
            self._socket.close(linger=500)
            self._context.term()
            os.close(self._wake_out)
            os.close(self._wake_in)

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _finished(self) -> bool:
        wanted = self._stop_after_groups
        return wanted is not None and self._members.came >= wanted and not len(self._members)

    def _serve_waiting(self) -> bool:
        """Serve the messages that wait, a bounded number; returns whether none is left."""
        for _ in range(_MESSAGES_PER_LAP):
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return True
            self._serve(frames[0].bytes, frames[1:])
            if self._stopping.is_set() or self._finished():
                break
        return False

    def _drop_silent(self) -> None:
        """Only when no message waits: a server that was held up must read the signs of life first."""
        for member in self._members.silent(time.monotonic()):
            log.warning("%s gave no sign of life for %g s: lost", member, self._lost_seconds)
            self._remove(member, lost=True)

    def _serve(self, identity: bytes, frames: list[Any]) -> None:
        """Carry out one message. Whatever it is, the server goes on."""
        request = None
        try:
            if not 1 <= len(frames) <= 2:
                raise ProtocolError(f"the message has {len(frames)} frames: a control frame and at most one payload")
            message = wire.decode_request(frames[0].buffer)
            request = getattr(message, "request", None)
            self._handle(identity, message, frames[1].buffer if len(frames) == 2 else None)
        except HybridPSError as error:
            self._refuse(identity, error, request)
        except Exception as error:
            log.exception("a message could not be handled")
            self._refuse(identity, ServerError(f"the server failed: {type(error).__name__}: {error}"), request)

    def _refuse(self, identity: bytes, error: HybridPSError, request: int | None) -> None:
        self.refused += 1
        log.info("refused: %s", error)
        self._send(identity, wire.refusal(error, request))

    def _handle(self, identity: bytes, message: wire.Request, payload: memoryview | None) -> None:
        now = time.monotonic()
        match message:
            case wire.Heartbeat(session=session):
                self._members.of_session(session, now)
                self._send(identity, wire.Alive())
            case wire.Hello():
                self._enter(identity, message, now)
            case wire.Leave():
                self._remove(self._members.of_identity(identity, now), lost=False)
                self._send(identity, wire.Left())
            case _:
                self._handle_table(self._members.of_identity(identity, now), message, payload)

    def _enter(self, identity: bytes, hello: wire.Hello, now: float) -> None:
        self._members.check_new(identity, hello.session)
        self._shard.enter(hello.job, hello.group, hello.groups)
        self._members.enter(Member(identity, hello.session, hello.job, hello.group, now))
        self._send(identity, wire.Welcome(wire.VERSION))

    def _remove(self, member: Member, lost: bool) -> None:
        self._members.leave(member, lost)
        self._tell(self._shard.leave(member.job, member.group, lost))

    def _handle_table(self, member: Member, message: wire.Request, payload: memoryview | None) -> None:
        match message:
            case wire.Register(request=request, table=table, terms=terms, initialise=initialise):
                self._send(member.identity, wire.Received(request))
                ticket = Ticket(member.job, member.group, request)
                self._tell(self._shard.register(ticket, table, terms, initialise))
            case wire.Initial(request=request, table=table, chunk=chunk):
                ticket = Ticket(member.job, member.group, request)
                self._tell(self._shard.initialise(ticket, table, chunk, payload))
            case (
                wire.Exchange(request=request, table=table, chunk=chunk)
                | wire.Push(request=request, table=table, chunk=chunk)
            ):
                if payload is None:
                    raise ProtocolError(f"chunk {chunk} of table {table!r} came without its values")
                ticket = Ticket(member.job, member.group, request)
                answered = isinstance(message, wire.Exchange)
                self._tell(self._shard.push(ticket, table, chunk, payload, answered))
            case wire.Pull(request=request, table=table, chunk=chunk):
                ticket = Ticket(member.job, member.group, request)
                self._tell(self._shard.pull(ticket, table, chunk))

    def _tell(self, outcomes: list[Outcome]) -> None:
        for outcome in outcomes:
            ticket = outcome.ticket
            member = self._members.of_group(ticket.job, ticket.group)
            if member is None:
                continue
            match outcome:
                case Joined(initialise=initialise):
                    self._send(member.identity, wire.Registered(ticket.request, initialise))
                case Done(chunk=chunk, values=values):
                    payload = None if values is None else values.view(np.uint8).data
                    self._send(member.identity, wire.Done(ticket.request, chunk), payload)

    def _send(self, identity: bytes, message: wire.Message, payload: memoryview | None = None) -> None:
        """Send a copy: the memory of a table changes before a slow group has read its answer."""
        frames: list[Any] = [identity, wire.encode(message)]
        if payload is not None:
            frames.append(payload)
        try:
            self._socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.ZMQError as error:
            log.debug("an answer could not be sent: %s", error)


def _check_local(address: str) -> None:
    if not _is_local(address):
        raise ServerError(
            f"{address} can be reached from other hosts, and nothing tells who may: "
            "bind to tcp://127.0.0.1:*, or give insecure=True (--insecure) in a network that you trust"
        )


def _is_local(address: str) -> bool:
    parts = urlsplit(address)
    try:
        return parts.scheme == "ipc" or parts.hostname == "localhost" or ip_address(parts.hostname or "").is_loopback
    except ValueError:
        return False


def _memory_of_host() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _listening(context: Any, address: str, largest_message_bytes: int) -> Any:
    socket = context.socket(zmq.ROUTER)
    socket.setsockopt(zmq.MAXMSGSIZE, largest_message_bytes)
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    # Answers wait without bound for a slow reader, for a router drops what is over the mark.
    socket.setsockopt(zmq.SNDHWM, 0)
    try:
        socket.bind(address)
    except zmq.ZMQError as error:
        socket.close(linger=0)
        context.term()
        raise ServerError(f"cannot serve at {address}: {error.strerror or error}; use another address") from None
    return socket
