"""One life of a group at its servers: greeting, answers and refusals, resending, leaving."""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from hybridps.config import Settings
from hybridps.errors import DeadlineError, HybridPSError, ProtocolError, ServerError
from hybridps.ps import wire
from hybridps.ps.client.heartbeat import Heartbeat
from hybridps.ps.client.operations import Operation, Sent
from hybridps.ps.client.pace import Pace
from hybridps.ps.client.sockets import Received, Sockets
from hybridps.ps.keys import Credentials
from hybridps.ps.model import GroupTakenError, UnknownClientError

_LEAVE_SECONDS = 2.0


class Session:
    """A group's connections with its servers, and the operations under way. Raises ServerError as `Client` says."""

    def __init__(
        self, addresses: Sequence[str], *, job: str, group: int, groups: int, settings: Settings, context: Any = None
    ) -> None:
        self._settings = settings
        self._under_way: dict[int, Operation] = {}
        """By the number of the request: an answer finds its operation here."""
        self._requests = itertools.count()
        self._paces: dict[str, Pace] = {}
        self.has_parent = False
        """Whether the servers are themselves clients of others."""
        self._welcomed: set[int] = set()
        self._greeting: set[int] = set()
        """Servers that were greeted again on a restored connection, and have not answered."""
        self._left: set[int] = set()
        self.failure: HybridPSError | None = None
        """The error that ended the session; it concerns no single request."""
        self._heartbeat: Heartbeat | None = None
        self._credentials = Credentials.of(settings)
        self._hello = wire.Hello(wire.VERSION, secrets.randbits(62), job, group, groups)
        if self._credentials is not None:
            named = {"tenant": self._credentials.tenant, "token": self._credentials.token}
            self._hello = msgspec.structs.replace(self._hello, **named)
        self._sockets = Sockets(addresses, self._credentials, context)
        try:
            self._greet_all()
        except BaseException:
            self.close()
            raise

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses of the servers."""
        return self._sockets.addresses

    def number(self) -> int:
        """A number for a request, greater than all before."""
        return next(self._requests)

    def pace(self, what: str) -> Pace:
        """How long operations of that name take."""
        return self._paces.setdefault(what, Pace())

    def begin(self, operation: Operation) -> None:
        """Deliver answers with the operation's number to it, from now on."""
        if not operation.done:
            self._under_way[operation.request] = operation

    def send(self, operation: Operation, sent: Sent) -> None:
        """Send a message of an operation, which keeps it: it may have to be sent again."""
        operation.sent.append(sent)
        self._sockets.send(sent.server, sent.message, sent.payloads)

    def finish(self, operation: Operation) -> None:
        """Return when an operation is done, which may wait for other groups, or for the turn of this tenant.

        An operation that always took long has longer, as its pace says. Raises DeadlineError if it is late, and
        ServerError as soon as a server is gone; not the operation's own error.
        """
        try:
            seconds = operation.pace.deadline_seconds(self._settings.deadline_seconds)
            self._until(lambda: operation.done, seconds, lambda: self._late(operation, seconds))
            operation.pace.add(time.monotonic() - operation.began)
        finally:
            self._under_way.pop(operation.request, None)
            if self._heartbeat is not None:
                self._heartbeat.settled = min(self._under_way, default=operation.request + 1)

    def wake_by(self, descriptor: int) -> None:
        """Have `listen` return when that descriptor can be read."""
        self._sockets.wake_by(descriptor)

    def listen(self) -> None:
        """Receive what the servers send, for one heartbeat at most. Raises the error that ended the session."""
        self._check()
        self._take_all(self._settings.heartbeat_seconds)

    def check_late(self, operation: Operation) -> None:
        """Raise DeadlineError if an operation is not done in the time that `finish` would give it."""
        seconds = operation.pace.deadline_seconds(self._settings.deadline_seconds)
        if not operation.done and time.monotonic() - operation.began > seconds:
            raise self._late(operation, seconds)

    def close(self, lost: bool = False) -> None:
        """Leave, and release what is held, in bounded time. Only once. `lost`: without telling the servers."""
        try:
            if not lost:
                self._leave()
        finally:
            if self._heartbeat is not None:
                self._heartbeat.stop()
            self._sockets.close(linger_seconds=0.0 if self._left >= self._welcomed else 0.1)

    def _greet_all(self) -> None:
        for server in range(len(self.addresses)):
            self._greet(server)
        settings = self._settings
        self._heartbeat = Heartbeat(
            self._sockets.context,
            self.addresses,
            self._hello.session,
            settings.heartbeat_seconds,
            settings.lost_seconds,
            self._credentials,
        )

    def _greet(self, server: int) -> None:
        """Introduce the group to a server. While another process is that group, wait until it is lost."""
        patience = time.monotonic() + self._settings.lost_seconds + self._settings.connect_seconds
        while server not in self._welcomed:
            self._sockets.send(server, self._hello)
            try:
                self._until(
                    lambda: server in self._welcomed, self._settings.connect_seconds, lambda: self._silence(server)
                )
            except GroupTakenError:
                if time.monotonic() > patience:
                    raise
                self.failure = None
                time.sleep(min(self._settings.heartbeat_seconds, self._settings.lost_seconds / 4))

    def _silence(self, server: int) -> ServerError:
        return ServerError(
            f"no answer from {self.addresses[server]} within {self._settings.connect_seconds:g} s: "
            "is `hybridps serve` running there?"
        )

    def _late(self, operation: Operation, seconds: float) -> DeadlineError:
        return DeadlineError(
            f"the {operation.what} is not done after {seconds:g} s: another group has not contributed yet; "
            "check what that group is doing, or raise HYBRIDPS_DEADLINE_SECONDS"
        )

    def _until(self, done: Callable[[], bool], seconds: float, late: Callable[[], HybridPSError]) -> None:
        """Receive until `done`. Raise `late` after `seconds`, and at once what ended the session."""
        deadline = time.monotonic() + seconds
        while not done():
            self._check()
            left = deadline - time.monotonic()
            if left <= 0:
                raise late()
            self._take_all(left)

    def _check(self) -> None:
        if self.failure is not None:
            raise self.failure
        if self._heartbeat is not None:
            self._heartbeat.check()

    def _take_all(self, seconds: float) -> None:
        for received in self._sockets.receive(min(seconds, self._settings.heartbeat_seconds)):
            self._take(received)

    def _take(self, received: Received) -> None:
        server, answer, payloads = received
        match answer:
            case None:
                self._greet_again(server)
            case wire.Welcome():
                self._welcomed.add(server)
                self.has_parent |= answer.has_parent
                if server in self._greeting:
                    self._greeting.discard(server)
                    self._send_again(server)
            case wire.Left():
                self._left.add(server)
            case wire.Refused():
                self._take_refusal(answer, server)
            case wire.Registered() | wire.Attached() | wire.Done():
                # The answer to an operation that was given up finds none, and is dropped.
                operation = self._under_way.get(answer.request)
                if operation is not None:
                    operation.take(server, answer, payloads)

    def _greet_again(self, server: int) -> None:
        """The connection is restored: what was under way may have been lost with the old one."""
        self._greeting.add(server)
        self._sockets.send(server, msgspec.structs.replace(self._hello, again=server in self._welcomed))

    def _send_again(self, server: int) -> None:
        """A request may have been lost, or its answer."""
        for _, operation in sorted(self._under_way.items()):
            for sent in operation.unanswered:
                if sent.server == server:
                    self._sockets.send(server, sent.message, sent.payloads)

    def _take_refusal(self, refused: wire.Refused, server: int) -> None:
        error = wire.error_of(refused, self.addresses[server])
        if refused.request is None:
            self.failure = error
        elif isinstance(error, UnknownClientError):
            # The request overtook the greeting, whose answer says whether the server still knows this client.
            if server not in self._greeting:
                self._greet_again(server)
        else:
            operation = self._under_way.get(refused.request)
            if operation is not None and operation.error is None:
                operation.error = error

    def _leave(self) -> None:
        """Tell the servers, and wait a moment for their answers, so that they do not take the group as lost."""
        for server in self._welcomed:
            self._sockets.send(server, wire.Leave())
        deadline = time.monotonic() + min(_LEAVE_SECONDS, self._settings.connect_seconds)
        while not self._left >= self._welcomed and time.monotonic() < deadline:
            try:
                if self._heartbeat is not None:
                    self._heartbeat.check()
                for received in self._sockets.receive(
                    min(deadline - time.monotonic(), self._settings.heartbeat_seconds)
                ):
                    if not self._take_goodbye(received):
                        return
            except ProtocolError:
                continue
            except ServerError:
                return

    def _take_goodbye(self, received: Received) -> bool:
        """Returns whether to wait for more answers: not if a server has ended the session by itself."""
        server, answer, _ = received
        if isinstance(answer, wire.Left):
            self._left.add(server)
        elif answer is None:
            self._greet_again(server)
            self._sockets.send(server, wire.Leave())
        return not (isinstance(answer, wire.Refused) and answer.request is None)
