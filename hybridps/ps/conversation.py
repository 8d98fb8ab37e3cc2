"""What a client and its servers say to each other, whatever it is about: greeting, answers, refusals, leaving."""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from hybridps.config import Settings
from hybridps.errors import DeadlineError, HybridPSError, ProtocolError, ServerError
from hybridps.ps import wire
from hybridps.ps.heartbeat import Heart
from hybridps.ps.keys import Credentials
from hybridps.ps.links import Incoming, Links, Restored
from hybridps.ps.members import UnknownClientError
from hybridps.ps.pace import Pace
from hybridps.ps.pending import Attachment, Parcel, Registration, Transfer
from hybridps.ps.shard import GroupTakenError

_LEAVE_SECONDS = 2.0


class Conversation:
    """A group's conversation with its servers. Raises ServerError as `Client` says."""

    def __init__(self, addresses: Sequence[str], *, job: str, group: int, groups: int, settings: Settings) -> None:
        self._settings = settings
        self.under_way: dict[int, Registration | Attachment | Transfer] = {}
        """Operations by the number of their request; an answer finds its operation here."""
        self._requests = itertools.count()
        self.has_parent = False
        """Whether the servers are themselves clients of others."""
        self._welcomed: set[int] = set()
        self._greeting: set[int] = set()
        """Servers that were told that this client is back, and have not answered."""
        self._left: set[int] = set()
        self.failure: HybridPSError | None = None
        """What concerns no single request, and ends the conversation."""
        self._heart: Heart | None = None
        self._credentials = Credentials.of(settings)
        self._hello = wire.Hello(wire.VERSION, secrets.randbits(62), job, group, groups)
        if self._credentials is not None:
            named = {"tenant": self._credentials.tenant, "token": self._credentials.token}
            self._hello = msgspec.structs.replace(self._hello, **named)
        self._links = Links(addresses, self._credentials)
        try:
            self._greet_all()
        except BaseException:
            self.close()
            raise

    @property
    def addresses(self) -> tuple[str, ...]:
        """Of the servers."""
        return self._links.addresses

    def number(self) -> int:
        """A number for a request, greater than all before."""
        return next(self._requests)

    def send(
        self,
        operation: Registration | Attachment | Transfer,
        server: int,
        message: wire.Register | wire.Attach | wire.OfChunks,
        payloads: Sequence[np.ndarray] = (),
    ) -> None:
        """As `Links.send`; the operation keeps it in case that it must be sent again."""
        operation.parcels.append(Parcel(server, message, payloads))
        self._links.send(server, message, payloads)

    def settle(self, request: int) -> None:
        """That request was answered, or given up."""
        self.under_way.pop(request, None)
        if self._heart is not None:
            self._heart.settled = min(self.under_way, default=request + 1)

    def await_others(self, done: Callable[[], bool], what: str, pace: Pace | None = None) -> None:
        """Return when `done`, which may wait for other groups, or for the turn of this tenant.

        Longer for what always took long, as `pace` tells. A server that is gone is noticed meanwhile.
        """
        seconds = (pace or Pace()).deadline_seconds(self._settings.deadline_seconds)
        self._until(done, seconds, self._late(what, seconds))

    def wake_by(self, descriptor: int) -> None:
        """Have `listen` return when that descriptor can be read."""
        self._links.wake_by(descriptor)

    def listen(self) -> None:
        """Take what the servers say, once; return after one beat of the heart at the latest. Raises what has failed."""
        if self.failure is not None:
            raise self.failure
        if self._heart is not None:
            self._heart.check()
        self._take_all(self._settings.heartbeat_seconds)

    def check_late(self, operation: Registration | Transfer) -> None:
        """Raise DeadlineError if an operation that nobody waits for is not done in the time that `await_others` has."""
        seconds = operation.pace.deadline_seconds(self._settings.deadline_seconds)
        if not operation.done and time.monotonic() - operation.began > seconds:
            raise self._late(operation.what, seconds)

    def close(self, lost: bool = False) -> None:
        """Leave, and release what is held, in bounded time. Only once. `lost`: without a word."""
        try:
            if not lost:
                self._leave()
        finally:
            if self._heart is not None:
                self._heart.stop()
            self._links.close(linger_seconds=0.0 if self._left >= self._welcomed else 0.1)

    def _greet_all(self) -> None:
        for server in range(len(self.addresses)):
            self._greet(server)
        settings = self._settings
        self._heart = Heart(
            self._links.context,
            self.addresses,
            self._hello.session,
            settings.heartbeat_seconds,
            settings.lost_seconds,
            self._credentials,
        )

    def _greet(self, server: int) -> None:
        patience = time.monotonic() + self._settings.lost_seconds + self._settings.connect_seconds
        while server not in self._welcomed:
            self._links.send(server, self._hello)
            try:
                self._until(lambda: server in self._welcomed, self._settings.connect_seconds, self._silence(server))
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

    def _late(self, what: str, seconds: float) -> DeadlineError:
        return DeadlineError(
            f"the {what} is not done after {seconds:g} s: another group has not come so far; "
            "look at what it does, or raise HYBRIDPS_DEADLINE_SECONDS"
        )

    def _until(self, done: Callable[[], bool], seconds: float, late: HybridPSError) -> None:
        """Take what the servers say until `done`, or raise `late` after `seconds`, or at once what has failed."""
        deadline = time.monotonic() + seconds
        while not done():
            if self.failure is not None:
                raise self.failure
            if self._heart is not None:
                self._heart.check()
            left = deadline - time.monotonic()
            if left <= 0:
                raise late
            self._take_all(left)

    def _take_all(self, seconds: float) -> None:
        for incoming in self._links.receive(min(seconds, self._settings.heartbeat_seconds)):
            self._take(incoming)

    def _take(self, incoming: Incoming) -> None:
        answer = incoming.answer
        if isinstance(answer, Restored):
            self._greet_again(incoming.server)
        elif isinstance(answer, wire.Welcome):
            self._welcomed.add(incoming.server)
            self.has_parent |= answer.has_parent
            if incoming.server in self._greeting:
                self._greeting.discard(incoming.server)
                self._send_again(incoming.server)
        elif isinstance(answer, wire.Left):
            self._left.add(incoming.server)
        elif isinstance(answer, wire.Refused):
            self._take_refusal(answer, incoming.server)
        elif isinstance(answer, (wire.Registered, wire.Attached, wire.Done)):
            self._take_result(answer, incoming.payloads)

    def _greet_again(self, server: int) -> None:
        self._greeting.add(server)
        self._links.send(server, msgspec.structs.replace(self._hello, again=server in self._welcomed))

    def _send_again(self, server: int) -> None:
        """What is under way at a server may have been lost, or its answer."""
        for _, operation in sorted(self.under_way.items()):
            for parcel in operation.parcels:
                if parcel.server == server and operation.awaits(parcel.message):
                    self._links.send(*parcel)

    def _take_refusal(self, refused: wire.Refused, server: int) -> None:
        error = wire.error_of(refused, self.addresses[server])
        if refused.request is not None and isinstance(error, UnknownClientError):
            # It overtook the word that this client is back, whose answer tells whether the server still knows it.
            if server not in self._greeting:
                self._greet_again(server)
            return
        if refused.request is None:
            self.failure = error
            return
        operation = self.under_way.get(refused.request)
        if operation is not None and operation.error is None:
            operation.error = error
        if isinstance(operation, Attachment):
            operation.done = True

    def _take_result(self, answer: wire.Registered | wire.Attached | wire.Done, payloads: Sequence[memoryview]) -> None:
        """An answer to an operation that was given up has no operation, and is dropped."""
        operation = self.under_way.get(answer.request)
        if isinstance(operation, Registration) and isinstance(answer, wire.Registered):
            operation.initialise = answer.initialise
        elif isinstance(operation, Attachment):
            operation.done = True
        elif isinstance(operation, Transfer) and isinstance(answer, wire.Done):
            operation.take(answer.chunks, payloads)

    def _leave(self) -> None:
        """Tell the servers, and wait a moment for their answers, so that they do not take the group as lost."""
        for server in self._welcomed:
            self._links.send(server, wire.Leave())
        deadline = time.monotonic() + min(_LEAVE_SECONDS, self._settings.connect_seconds)
        while not self._left >= self._welcomed and time.monotonic() < deadline:
            try:
                if self._heart is not None:
                    self._heart.check()
                for incoming in self._links.receive(min(deadline - time.monotonic(), self._settings.heartbeat_seconds)):
                    if isinstance(incoming.answer, wire.Left):
                        self._left.add(incoming.server)
                    elif isinstance(incoming.answer, Restored):
                        self._greet_again(incoming.server)
                        self._links.send(incoming.server, wire.Leave())
                    elif isinstance(incoming.answer, wire.Refused) and incoming.answer.request is None:
                        return
            except ProtocolError:
                continue
            except ServerError:
                return
