"""One life of a group at its servers: greeting, sending and receiving, refusals, resending, leaving."""

from __future__ import annotations

import contextlib
import itertools
import math
import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
import zmq

from hybridps.codecs import Codec
from hybridps.config import Settings
from hybridps.errors import HybridPSError, ServerError
from hybridps.ps import wire
from hybridps.ps.client.heartbeat import Heartbeat
from hybridps.ps.client.operations import EXACT, Operation, Pace, Sent, Table
from hybridps.ps.client.sockets import Sockets
from hybridps.ps.joining import terms_of
from hybridps.ps.keys import Credentials
from hybridps.ps.model import GroupTakenError, UnknownClientError
from hybridps.ps.zmq_sockets import has_message

_LEAVE_SECONDS = 2.0


class Session:
    """A group's connections with its servers, and the operations under way. Raises ServerError as `Client` says."""

    def __init__(
        self, addresses: Sequence[str], *, job: str, group: int, groups: int, settings: Settings, context: Any = None
    ) -> None:
        self.addresses = tuple(addresses)
        self.has_parent = False
        """Whether the servers are clients of others themselves."""
        self.under_way: dict[int, Operation] = {}
        """The operations by the number of their request, in ascending order. An answer finds its operation here."""
        self._settings = settings
        self._numbers = itertools.count()
        self._paces: defaultdict[str, Pace] = defaultdict(Pace)
        self._greeting: set[int] = set()
        """Servers that were greeted again on a restored connection, and have not answered."""
        self._lives: dict[int, int] = {}
        """How many processes each server had been when it last welcomed this client."""
        self.offers_of: Callable[[int], Iterable[wire.Attach]] = lambda server: ()
        """Returns the memory that a server has, which must be offered again to the server's next process."""
        self._left: set[int] | None = None
        """Servers that have confirmed that this group left; None before it leaves."""
        self._leave = wire.Leave()
        self._failure: HybridPSError | None = None
        """The error that ended the session; it concerns no single request."""
        self.number = secrets.randbits(62)
        """Identifies this life of the group to its servers; a secret of the job."""
        credentials = Credentials.of(settings)
        terms = terms_of(settings, self.addresses)
        groups = settings.joins or groups
        self._hello = wire.Hello(wire.VERSION, self.number, job, group, groups, life=settings.life, terms=terms)
        if credentials is not None:
            self._hello = msgspec.structs.replace(self._hello, tenant=credentials.tenant, token=credentials.token)
        self._sockets = Sockets(self.addresses, credentials, context)
        self.heartbeat = Heartbeat(self._sockets, self._hello.session, settings)
        self.heartbeat.start()
        try:
            for server in range(len(addresses)):
                self._greet(server)
        except BaseException:
            self.close()
            raise

    @property
    def counted(self) -> tuple[int, int] | None:
        """The numbers of groups and workers of the job that the first server reported last."""
        return self.heartbeat.counted

    def begin(
        self, what: str, messages: Callable[[int], Iterable[Sent]], table: Table | None = None, codec: Codec = EXACT
    ) -> Operation:
        """Send the messages of a request. `messages` gets its number, which is greater than all earlier ones."""
        self.check()
        operation = Operation(what, next(self._numbers), self, table, codec)
        for sent in messages(operation.request):
            operation.add(sent)
            if sent.server not in self._greeting:  # otherwise it follows the Welcome and offers of memory
                self.send(*sent[:3])
        if not operation.done:
            self.under_way[operation.request] = operation
        return operation

    def refused(self, what: str, error: HybridPSError) -> Operation:
        """Return an operation that was refused before anything was sent."""
        operation = Operation(what, next(self._numbers), self)
        operation.error = error
        return operation

    def ask(self, what: str, servers: Iterable[int], message: Callable[[int, int], wire.Request]) -> Operation:
        """Send some servers a request without payload: `message(request, server)`."""
        return self.begin(
            what, lambda request: (Sent(each, message(request, each), (), {each: None}) for each in servers)
        )

    @property
    def away(self) -> bool:
        """Whether a server cannot be reached now."""
        return bool(self.heartbeat.away)

    def finish(self, operation: Operation, stays: bool = True) -> bool:
        """Wait until an operation is done. It may wait for other groups, or for the turn of this tenant.

        Unless `stays`, returns False as soon as a server is away; the operation is then still under way. An operation
        that always took long has a later deadline, according to its pace. Raises DeadlineError if it takes too long,
        and ServerError as soon as a server is away for too long; it does not raise the operation's own error.
        """
        if stays or not self.away:
            self._await(operation, stays)
        if operation.done:
            self._paces[operation.what].add(time.monotonic() - operation.began)
            self._settle(operation)
        return operation.done

    def is_done_within(self, operation: Operation, seconds: float) -> bool:
        """Wait until an operation is done, for at most `seconds`. Returns whether it is; if not, it stays under way."""
        return self._until(lambda: operation.done, seconds)

    def _await(self, operation: Operation, stays: bool) -> None:
        """Wait until it is done or, unless `stays`, until a server is away. Raises the errors of `finish`."""
        try:
            leaves = not stays
            if not self._until(lambda: operation.done or (leaves and self.away), self._allowed_seconds(operation)):
                raise operation.late(self._allowed_seconds(operation)) from operation.error
        except BaseException:
            self._settle(operation)
            raise

    def _settle(self, operation: Operation) -> None:
        """Forget an operation that is not awaited any more."""
        self.under_way.pop(operation.request, None)
        self.heartbeat.settled = min(self.under_way, default=operation.request + 1)

    def wake_by(self, descriptor: int) -> None:
        """Make `listen` return when that descriptor can be read."""
        self._sockets.poller.register(descriptor, zmq.POLLIN)

    def listen(self) -> None:
        """Receive what the servers send, for at most one heartbeat. Raises the errors of `finish`, of any operation."""
        self.check()
        self._receive(self._settings.heartbeat_seconds)
        now = time.monotonic()
        for operation in self.under_way.values():
            if not operation.done and now - operation.began > self._allowed_seconds(operation):
                raise operation.late(self._allowed_seconds(operation))

    def check(self) -> None:
        """Raise the error that ended the session, if it has ended."""
        failure = self._failure or self.heartbeat.failure
        if failure is not None:
            raise failure

    def heed(self, silent_seconds: Callable[[], float]) -> Callable[[], HybridPSError | None]:
        """Report from now on for how long some rank of the group is silent and the group waits for servers.

        Returns a function for the error if a server has refused a heartbeat or is away for too long, else None.
        """
        self.heartbeat.report = lambda: (silent_seconds(), self._waiting_seconds())
        beats = self.heartbeat
        return lambda: beats.failure or next(iter([*beats.strangers.values()]), None)

    def close(self, lost: bool = False, early: bool = False) -> None:
        """Release all resources. A second call does nothing.

        Unless `lost`, tells the servers, and waits briefly for their answers, so that they do not take the group as
        lost. `early`: the group leaves before the end of its training.
        """
        if self._left is not None:
            return
        left = self._left = set()
        self._leave = wire.Leave(early)
        try:
            for server in () if lost else self._lives:
                self.send(server, self._leave)
            with contextlib.suppress(HybridPSError):
                seconds = min(_LEAVE_SECONDS, self._settings.connect_seconds)
                self._until(lambda: lost or left >= self._lives.keys(), seconds)
        finally:
            self._failure = ServerError(f"group {self._hello.group} has left its servers: open a new client")
            self.heartbeat.stop()
            self._sockets.close(linger_seconds=0.0 if left >= self._lives.keys() else 0.1)

    def send(self, server: int, message: wire.Message, payloads: Sequence[np.ndarray] = ()) -> None:
        """Hand a message to the transport. Payloads are not copied; they must not change until the answer arrives."""
        frames = [wire.encode(message), *(payload.view(np.uint8).data for payload in payloads)]
        self._sockets.send(server, frames, copy=not payloads)

    def _greet(self, server: int) -> None:
        """Introduce the group to a server. While another process is that group, wait until it is lost."""
        settings = self._settings
        patience = time.monotonic() + settings.lost_seconds + settings.connect_seconds
        while server not in self._lives:
            self.send(server, self._hello_to(server))
            try:
                if not self._until(lambda: server in self._lives, settings.connect_seconds):
                    raise ServerError(
                        f"no answer from {self.addresses[server]} within {settings.connect_seconds:g} s: "
                        "is `hybridps serve` running there?"
                    )
            except GroupTakenError:
                if time.monotonic() > patience:
                    raise
                self._failure = None
                time.sleep(min(settings.heartbeat_seconds, settings.lost_seconds / 4))

    def _hello_to(self, server: int) -> wire.Hello:
        terms = msgspec.structs.replace(self._hello.terms, server=server)
        return msgspec.structs.replace(self._hello, terms=terms)

    def _waiting_seconds(self) -> float:
        """Return for how long the oldest operation has been under way; 0 if none is. Any thread may call this."""
        began = [operation.began for operation in list(self.under_way.values()) if not operation.done]
        return time.monotonic() - min(began) if began else 0.0

    def _allowed_seconds(self, operation: Operation) -> float:
        return self._paces[operation.what].deadline_seconds(self._settings.deadline_seconds)

    def _until(self, done: Callable[[], bool], seconds: float) -> bool:
        """Receive until `done`, for at most `seconds`. Returns whether it is. Raises the error that ended the session.

        With 0 seconds, it takes what has arrived. Time in which a server is away does not count.
        """
        now = time.monotonic()
        deadline = now + seconds
        while not done():
            self.check()
            before, now = now, time.monotonic()
            deadline += now - before if self.away else 0.0
            self._receive(min(max(0.0, deadline - now), self._settings.beat_seconds))
            if now >= deadline:
                return done()
        return True

    def _receive(self, seconds: float) -> None:
        """Take the messages that have arrived, or arrive within `seconds`.

        Raises ProtocolError for a message that cannot be read, ServerError if a server refuses the connection.
        """
        self._follow_heartbeat()
        ready = dict(self._sockets.poller.poll(math.ceil(max(0.0, seconds) * 1000)))
        for server, monitor in enumerate(self._sockets.monitors):
            while monitor in ready and has_message(monitor):
                if self._sockets.is_restored(server):
                    self._greet_again(server)
        for server, socket in enumerate(self._sockets.sockets):
            while socket in ready and has_message(socket):
                frames = socket.recv_multipart(zmq.NOBLOCK, copy=False)
                # The payloads are valid as long as they are held.
                self._take(server, wire.decode_answer(frames[0].buffer), [frame.buffer for frame in frames[1:]])

    def _follow_heartbeat(self) -> None:
        """Reconnect to servers that were away, and greet those again that took this client as lost."""
        while self.heartbeat.returned:
            server = self.heartbeat.returned.popleft()
            self._greeting.add(server)  # later messages follow the Welcome
            self._sockets.connect_anew(server)
        for server in [*self.heartbeat.strangers]:
            if server not in self._greeting and self._left is None:
                self._greet_again(server)

    def _take(self, server: int, answer: wire.Answer, payloads: Sequence[memoryview]) -> None:
        match answer:
            case wire.Done() | wire.Registered() | wire.Met():
                # The answer to an operation that was given up finds none, and is dropped.
                operation = self.under_way.get(answer.request)
                if operation is not None:
                    operation.take(server, answer, payloads)
            case wire.Welcome():
                self.heartbeat.begin(server)
                self.has_parent |= answer.has_parent
                if isinstance(self._failure, GroupTakenError):
                    self._failure = None  # it was about an earlier greeting, which a restored connection has repeated
                # A connection may also break before its first answer.
                known = self._lives.get(server, answer.life)
                if server in self._greeting or answer.life != known:
                    self._greeting.discard(server)
                    for offer in self.offers_of(server):
                        self.send(server, offer)
                    for sent in [sent for each in self.under_way.values() for sent in each.begin_again(server)]:
                        self.send(*sent[:3])
                    self.send(server, wire.Back())
                self._lives[server] = answer.life
            case wire.Alive():
                if self._left is not None:
                    self._left.add(server)
            case wire.Refused():
                self._take_refusal(answer, server)

    def _greet_again(self, server: int) -> None:
        """Greet a server on a restored connection. Requests under way, or their answers, may have been lost."""
        self._greeting.add(server)
        self.send(server, msgspec.structs.replace(self._hello_to(server), again=server in self._lives))
        if self._left is not None:
            self.send(server, self._leave)

    def _take_refusal(self, refused: wire.Refused, server: int) -> None:
        error = wire.error_of(refused, self.addresses[server])
        if refused.request is None:
            self._failure = error
        elif isinstance(error, UnknownClientError):
            # The request overtook the greeting, whose answer says whether the server still knows this client.
            if server not in self._greeting:
                self._greet_again(server)
        else:
            operation = self.under_way.get(refused.request)
            if operation is not None:
                operation.refuse(error, refused.chunk)
