"""A server: the transport around a shard. One socket, and threads that own the chunks."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any

import numpy as np
import zmq

from hybridps.config import Settings
from hybridps.errors import HybridPSError, ProtocolError, ServerError
from hybridps.ps import wire
from hybridps.ps.accounts import Accounts
from hybridps.ps.fair import FairQueue
from hybridps.ps.keys import AllowList
from hybridps.ps.listening import MOST_UNREAD, check_local, listen, memory_of_host
from hybridps.ps.members import Member, Members, UnknownClientError
from hybridps.ps.observer import Observer
from hybridps.ps.owners import Owners
from hybridps.ps.parents import Parents
from hybridps.ps.requests import Regions, carry_out, cost_bytes
from hybridps.ps.rules.finite import NotFiniteError
from hybridps.ps.shard import Shard
from hybridps.ps.terms import Done, Joined, Outcome, Ticket, Up, Work
from hybridps.ps.zap import Doorkeeper

log = logging.getLogger("hybridps.ps")

_MESSAGES_PER_LAP = 32
_MOST_BACKLOG = 32
"""Pieces of work that are handed out in advance: what a tenant waits for that has just come."""

_LARGEST_GREETING_BYTES = 4096
"""A client that is not known yet cannot say more."""

_LONGEST_LAP_SECONDS = 1.0
_MOST_THREADS = 4
"""Unless asked for: a few cores move all that the memory can."""

_SETTLED_PER_LOST = 8
"""So many times in `lost_seconds` a client may settle requests, as all chunks are looked at then."""

_ABSENT_LAPS = 3
"""So many times `lost_seconds` after a job's first group, its tables wait no more for one that is not there."""


class Server:
    """Serves at `address` from construction on; `run` does the work.

    `threads` share the chunks (default: as many as cores, 4 at most); the first one is that of `run`, which also talks
    to the groups. `cores` pins them.
    `lost_seconds`: a group without sign of life for so long is lost. `stop_after_groups`: end when so many
    groups came and none is there any more. `memory_bytes` bounds all tables together (default: what this
    host has).
    `check_finite`: values with NaN or Inf are refused. `allowed`: only these tenants may connect, with their keys.
    `parents`: where this server's groups, a rack, meet other racks; the server closes them.
    Raises ServerError if the address cannot be used, or is beyond this host without keys and not `insecure`.
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
        threads: int | None = None,
        cores: Sequence[int] = (),
        check_finite: bool = True,
        allowed: AllowList | None = None,
        parents: Parents | None = None,
    ) -> None:
        if not insecure and allowed is None:
            check_local(address)
        self._lost_seconds = lost_seconds
        self._stop_after_groups = stop_after_groups
        self._threads = threads or min(os.cpu_count() or 1, _MOST_THREADS)
        self._cores = cores
        if not set(cores) <= os.sched_getaffinity(0):
            usable = ", ".join(map(str, sorted(os.sched_getaffinity(0))))
            raise ServerError(f"threads cannot be pinned to the cores {list(cores)}: this process may use {usable}")
        whole_bytes = memory_of_host() if memory_bytes is None else memory_bytes
        self._shard = Shard(whole_bytes, self._threads, check_finite, parents is not None)
        self._parents = parents
        self._regions: dict[int, Regions] = {}
        self._accounts = Accounts(allowed, self._shard.budget)
        self._queue = FairQueue()
        self._members = Members(lost_seconds)
        self._observer: Observer | None = None
        self._deaf: set[bytes] = set()
        """Sockets of clients that do not read their answers."""
        self.refused = 0
        """Number of requests that were refused."""
        self._stopping = threading.Event()
        self._closing = threading.RLock()
        # Each connection is given to the thread that has fewest. An odd number: every other connection is a heart's.
        self._context: Any = zmq.Context(io_threads=2 * self._threads + 1)
        self._door = Doorkeeper(self._context, allowed)
        try:
            self._socket: Any = listen(self._context, address, largest_message_bytes, allowed)
        except ServerError:
            if parents is not None:
                parents.close()
            self._door.close()
            self._context.term()
            raise
        self._door.attend(self._socket)
        self._welcome = wire.Welcome(wire.VERSION, has_parent=parents is not None)
        self._wake_out, self._wake_in = os.pipe()
        self.address: str = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        """Where clients find it, with the actual port."""

    @classmethod
    def of(
        cls, settings: Settings, address: str, *, insecure: bool = False, stop_after_groups: int | None = None
    ) -> Server:
        """A server as the settings say. Raises ConfigError for keys that cannot be read, and as the constructor."""
        return cls(
            address,
            lost_seconds=settings.lost_seconds,
            stop_after_groups=stop_after_groups,
            insecure=insecure,
            threads=settings.server_threads,
            cores=settings.server_cores,
            check_finite=settings.check_finite,
            allowed=AllowList.of(settings),
            parents=Parents.of(settings),
        )

    def run(self, until: Callable[[], bool] | None = None) -> None:
        """Serve until `stop` is called, `stop_after_groups` is reached, or `until()`, asked every second, is true.

        Closes the server.
        """
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._wake_out, zmq.POLLIN)
        lap_seconds = min(_LONGEST_LAP_SECONDS, self._lost_seconds / 4)
        self._owners = Owners(self._threads, self._cores)
        poller.register(self._owners.ready, zmq.POLLIN)
        self._door.watch(poller)
        if self._parents is not None:
            poller.register(self._parents.ready, zmq.POLLIN)
        try:
            while not self._stopping.is_set() and not self._finished() and not (until and until()):
                poller.poll(math.ceil(1000 * min(lap_seconds, self._idle_seconds())))
                self._door.serve()
                if self._read_waiting():
                    self._drop_silent()
                self._serve_waiting()
                self._tell_done(self._owners.collect())
                self._tell_done(self._owners.work())
                self._hear_parents()
                self._drop_deaf()
                if self._observer is not None:
                    self._observer.look(time.monotonic(), self._owners.backlog, self.refused, self._door.refused)
        finally:
            self._owners.close()
            self.close()

    def observe(self) -> Observer:
        """Have snapshots made while it runs."""
        self._observer = Observer(self._accounts, self._members, self._shard, self._threads)
        return self._observer

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
            if self._parents is not None:
                self._parents.close()
            self._door.close()
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

    def _idle_seconds(self) -> float:
        """How long there is nothing to do if nothing comes."""
        if self._owners.busy:
            return 0.0
        return math.inf if self._owners.backlog >= _MOST_BACKLOG else self._queue.rest_seconds(time.monotonic())

    def _read_waiting(self) -> bool:
        """Read the messages that wait at the socket, a bounded number; returns whether none is left."""
        for _ in range(_MESSAGES_PER_LAP):
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return True
            self._read(frames[0].bytes, frames[1:])
        return False

    def _serve_waiting(self) -> None:
        """Carry out messages of members, whose turn it is, as long as there is little work in advance."""
        for _ in range(_MESSAGES_PER_LAP):
            if self._stopping.is_set() or self._finished() or self._owners.backlog >= _MOST_BACKLOG:
                return
            now = time.monotonic()
            found = self._queue.take(now)
            if found is None:
                return
            account, (identity, frames) = found
            self._queue.charge(account, self._serve(identity, frames), now)

    def _drop_silent(self) -> None:
        """Only when no message waits: a server that was held up must read the signs of life first."""
        for member in self._members.silent(time.monotonic()):
            if any(identity == member.identity for (identity, _), _ in member.account.waiting):
                continue  # its tenant rests: maybe it has said goodbye
            log.warning("%s gave no sign of life for %g s: lost", member, self._lost_seconds)
            self._remove(member, lost=True)
        for job in self._members.begun_before(time.monotonic() - _ABSENT_LAPS * self._lost_seconds):
            self._tell(self._shard.begin_without_absent(job))

    def _drop_deaf(self) -> None:
        """An answer of theirs was dropped: they cannot go on."""
        while self._deaf:
            member = self._members.at(self._deaf.pop(), time.monotonic())
            if member is not None:
                log.warning("%s left %d answers unread: lost", member, MOST_UNREAD)
                self._remove(member, lost=True)

    def _read(self, identity: bytes, frames: list[Any]) -> None:
        """What members send waits for their turn; greetings and signs of life are answered at once."""
        member = self._members.at(identity, time.monotonic())
        if member is not None and frames and member.key != self._door.key_of(frames[0]):
            # A peer may choose its socket's name, that of a client which is gone too.
            self.refused += 1
            error = UnknownClientError("this socket has the name of another tenant's client: open a new one")
            self._send(identity, wire.refusal(error, _request_of(frames)))
            return
        if member is None:
            self._serve(identity, frames, is_known=False)
            return
        try:
            self._queue.put(member.account, (identity, frames), sum(len(frame) for frame in frames))
        except ServerError as error:
            self._refuse(identity, error, _request_of(frames))

    def _serve(self, identity: bytes, frames: list[Any], is_known: bool = True) -> int:
        """Carry out one message, and return what it cost in bytes. Whatever it is, the server goes on."""
        request = None
        try:
            if not frames:
                raise ProtocolError("the message has no frames: it begins with a control frame")
            if not is_known and len(frames[0]) > _LARGEST_GREETING_BYTES:
                raise UnknownClientError("this client is not known here: it must say hello first")
            message = wire.decode_request(frames[0].buffer)
            request = getattr(message, "request", None)
            return self._handle(identity, message, frames)
        except HybridPSError as error:
            self._refuse(identity, error, request)
        except Exception as error:
            log.exception("a message could not be handled")
            self._refuse(identity, ServerError(f"the server failed: {type(error).__name__}: {error}"), request)
        return sum(len(frame) for frame in frames)

    def _refuse(self, identity: bytes, error: HybridPSError, request: int | None) -> None:
        member = self._members.at(identity, time.monotonic())
        if member is not None:
            member.account.refused += 1
            member.account.not_finite += isinstance(error, NotFiniteError)
        self.refused += 1
        log.info("refused: %s", error)
        self._send(identity, wire.refusal(error, request))

    def _handle(self, identity: bytes, message: wire.Request, frames: list[Any]) -> int:
        now = time.monotonic()
        match message:
            case wire.Heartbeat(session=session, settled=settled):
                member = self._members.of_session(session, now)
                if member.may_settle(now, self._lost_seconds / _SETTLED_PER_LOST):
                    self._shard.settle(member.job, member.group, settled)
                self._send(identity, wire.Alive())
            case wire.Hello():
                self._enter(identity, message, frames[0], now)
            case wire.Leave():
                self._remove(self._members.of_identity(identity, now), lost=False)
                self._send(identity, wire.Left())
            case wire.Attach(request=request):
                member = self._members.of_identity(identity, now)
                self._regions[member.session].attach(message)
                self._send(identity, wire.Attached(request))
            case _:
                member = self._members.of_identity(identity, now)
                self._check_parents(member)
                regions = self._regions[member.session]
                whose = self._shard, member.job, member.group
                begun: list[Outcome] = []
                try:
                    for outcome in carry_out(*whose, message, [frame.buffer for frame in frames[1:]], regions):
                        begun.append(outcome)
                finally:
                    self._tell(begun)
                return cost_bytes(*whose, message, len(frames[0]))
        return len(frames[0])

    def _enter(self, identity: bytes, hello: wire.Hello, frame: Any, now: float) -> None:
        try:
            key = self._door.key_of(frame)
            account = self._accounts.of(hello, key)
        except ServerError as error:
            self._door.tell(f"a client: {error}")
            raise
        job = self._accounts.name_of(hello)
        if hello.again:
            self._members.of_session(hello.session, now)
        if self._members.back(identity, hello.session, job, hello.group, now):
            self._send(identity, self._welcome)
            return
        self._shard.enter(job, hello.group, hello.groups, account.budget)
        self._members.enter(Member(identity, hello.session, job, hello.group, now, account, key))
        self._regions[hello.session] = Regions()
        self._send(identity, self._welcome)

    def _remove(self, member: Member, lost: bool) -> None:
        # Their memory is their own again: no work may be left that uses it.
        self._tell_done(self._owners.finish())
        self._members.leave(member, lost)
        del self._regions[member.session]
        self._tell(self._shard.leave(member.job, member.group, lost))
        if self._parents is not None and not self._members.there(member.job):
            self._parents.leave(member.job, lost)

    def _hear_parents(self) -> None:
        """What is back from the parents; the groups of a job that has lost them are told once, and are refused then."""
        if self._parents is None:
            return
        before = {*self._parents.failed}
        for up, error in self._parents.collect():
            self._tell(self._shard.answered(up, error))
        for job in self._parents.failed.keys() - before:
            log.warning("job %r: %s", job, self._parents.failed[job])
            for member in [member for member in self._members if member.job == job]:
                self._refuse(member.identity, self._parents.failed[job], None)

    def _check_parents(self, member: Member) -> None:
        if self._parents is not None and member.job in self._parents.failed:
            raise self._parents.failed[member.job]

    def _tell(self, outcomes: Iterable[Outcome]) -> None:
        works: list[Work] = []
        done: list[Done | Up] = []
        for outcome in outcomes:
            match outcome:
                case Joined(ticket=ticket, initialise=initialise):
                    self._answer(ticket, wire.Registered(ticket.request, initialise))
                case Done() | Up():
                    done.append(outcome)
                case Work():
                    works.append(outcome)
        self._tell_done(done)
        self._owners.hand(works)

    def _tell_done(self, done: Sequence[Done | Up]) -> None:
        """What ends together for a request is told in one message."""
        together: dict[Ticket, list[Done]] = {}
        for end in done:
            if isinstance(end, Up):
                self._send_up(end)
            elif end.error:
                self._refuse_ticket(end.ticket, end.error)
            else:
                together.setdefault(end.ticket, []).append(end)
        for ticket, ends in together.items():
            chunks = tuple(end.chunk for end in ends)
            self._answer(ticket, wire.Done(ticket.request, chunks), [end.values for end in ends])

    def _send_up(self, up: Up) -> None:
        """Unless the job has gone meanwhile."""
        if self._parents is not None and self._members.there(up.way.job):
            self._parents.send(up)

    def _refuse_ticket(self, ticket: Ticket, error: HybridPSError) -> None:
        member = self._members.of_group(ticket.job, ticket.group)
        if member is not None:
            self._refuse(member.identity, error, ticket.request)

    def _answer(self, ticket: Ticket, message: wire.Message, values: Sequence[np.ndarray | None] = ()) -> None:
        member = self._members.of_group(ticket.job, ticket.group)
        if member is not None:
            member.account.sent_bytes += sum(array.nbytes for array in values if array is not None)
            self._send(member.identity, message, values)

    def _send(self, identity: bytes, message: wire.Message, values: Sequence[np.ndarray | None] = ()) -> None:
        """Send a message, and the values from where they lie."""
        payloads = [array.view(np.uint8).data for array in values if array is not None]
        try:
            self._socket.send_multipart([identity, wire.encode(message), *payloads], zmq.NOBLOCK, copy=not payloads)
        except zmq.Again:
            self._deaf.add(identity)
        except zmq.ZMQError as error:
            log.debug("an answer could not be sent: %s", error)


def _request_of(frames: list[Any]) -> int | None:
    """The number of a request that is refused unread."""
    try:
        return getattr(wire.decode_request(frames[0].buffer), "request", None) if frames else None
    except HybridPSError:
        return None
