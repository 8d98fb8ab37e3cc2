"""What a server does with the messages of its clients: who may, whose turn it is, what follows. The loop uses it."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from hybridps.errors import HybridPSError, ProtocolError, ServerError
from hybridps.ps import wire
from hybridps.ps.model import Admitted, Answer, Origin, Outcome, Task, UnknownClientError, Upward
from hybridps.ps.rules.finite import NotFiniteError
from hybridps.ps.server.admission import MESSAGE_BYTES, Accounts, FairQueue
from hybridps.ps.server.door import MOST_UNREAD
from hybridps.ps.server.members import Member, Members
from hybridps.ps.server.requests import Regions, carry_out, cost_bytes
from hybridps.ps.server.tables.jobs import Jobs
from hybridps.ps.server.transport import Transport
from hybridps.ps.server.upstream import Parents
from hybridps.ps.server.workers import Workers

log = logging.getLogger("hybridps.ps")

_MESSAGES_PER_LAP = 32

MOST_BACKLOG = 32
"""Tasks that are handed out in advance: what a tenant waits for that has just come."""

_LARGEST_GREETING_BYTES = 4096
"""A client that is not known yet cannot say more."""

_FRAME_BYTES = 512
"""What a frame takes beside its payload, about."""

_SETTLED_PER_LOST = 8
"""So many times in `lost_seconds` a client may settle requests, as all chunks are looked at then."""

_JUDGED_PER_LOST = 64
"""So many times in `lost_seconds` the clients are looked at."""

_ABSENT_LAPS = 3
"""So many times `lost_seconds` after a job's first group, its tables wait no more for one that is not there."""


class Service:
    """The clients of a server, and their requests. `jobs`: their tables. `parents`: of a rack server."""

    def __init__(
        self,
        transport: Transport,
        jobs: Jobs,
        members: Members,
        accounts: Accounts,
        workers: Workers,
        parents: Parents | None,
        *,
        lost_seconds: float,
        stop_after_groups: int | None,
    ) -> None:
        self.refused = 0
        """Number of requests that were refused."""
        self.queue = FairQueue()
        self._transport = transport
        self._jobs = jobs
        self._members = members
        self._accounts = accounts
        self._workers = workers
        self._parents = parents
        self._lost_seconds = lost_seconds
        self._stop_after_groups = stop_after_groups
        self._judged_seconds = -math.inf
        self._regions: dict[int, Regions] = {}
        self._welcome = wire.Welcome(wire.VERSION, has_parent=parents is not None)

    @property
    def finished(self) -> bool:
        """Whether as many groups came as were wanted, and none is there any more."""
        wanted = self._stop_after_groups
        return wanted is not None and self._members.came >= wanted and not len(self._members)

    def read_waiting(self) -> bool:
        """Read the messages that wait at the socket, a bounded number; returns whether none is left."""
        for _ in range(_MESSAGES_PER_LAP):
            frames = self._transport.receive()
            if frames is None:
                return True
            self.read(frames[0].bytes, frames[1:])
        return False

    def serve_waiting(self) -> None:
        """Carry out messages of members, whose turn it is, as long as there is little work in advance."""
        for _ in range(_MESSAGES_PER_LAP):
            if self.finished or self._workers.backlog >= MOST_BACKLOG:
                return
            now = time.monotonic()
            found = self.queue.take(now)
            if found is None:
                return
            account, (identity, frames) = found
            self.queue.charge(account, self._serve(identity, frames), now)

    def drop_lost(self) -> None:
        """Go on without clients that gave no sign of life, or do not read their answers."""
        self._drop_unread()
        now = time.monotonic()
        if now < self._judged_seconds + self._lost_seconds / _JUDGED_PER_LOST:
            return
        self._judged_seconds = now
        for member in self._members.silent(now):
            if any(identity == member.identity for (identity, _), _ in member.account.waiting):
                continue  # its tenant rests: maybe it has said goodbye
            log.warning("%s gave no sign of life for %g s: lost", member, self._lost_seconds)
            self._remove(member, lost=True)
        for job in self._members.begun_before(now - _ABSENT_LAPS * self._lost_seconds):
            self._carry_on(self._jobs.begin_without_absent(job))

    def _drop_unread(self) -> None:
        """An answer of theirs was dropped: they cannot go on."""
        while self._transport.unread:
            member = self._members.at(self._transport.unread.pop(), time.monotonic())
            if member is not None:
                log.warning("%s left %d answers unread: lost", member, MOST_UNREAD)
                self._remove(member, lost=True)

    def read(self, identity: bytes, frames: list[Any]) -> None:
        """What members send waits for their turn; greetings and signs of life are answered at once."""
        member = self._members.at(identity, time.monotonic())
        if member is not None and frames and member.key != self._transport.door.key_of(frames[0]):
            # A peer may choose its socket's name, that of a client which is gone too.
            self.refused += 1
            error = UnknownClientError("this socket has the name of another tenant's client: open a new one")
            self._transport.send(identity, wire.refusal(error, _request_of(frames)))
            return
        if member is None:
            self._serve(identity, frames, is_known=False)
            return
        try:
            if len(frames) > wire.MOST_CHUNKS + 1:
                raise ProtocolError(f"a message has {wire.MOST_CHUNKS} payload frames at most: send several")
            nbytes = sum(len(frame) + _FRAME_BYTES for frame in frames)
            self._jobs.evict_for(member.account.budget, nbytes + MESSAGE_BYTES)
            self.queue.put(member.account, (identity, frames), nbytes)
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
        self._transport.send(identity, wire.refusal(error, request))

    def _handle(self, identity: bytes, message: wire.Request, frames: list[Any]) -> int:
        now = time.monotonic()
        match message:
            case wire.Heartbeat(session=session, settled=settled):
                member = self._members.of_session(session, now)
                if member.may_settle(now, self._lost_seconds / _SETTLED_PER_LOST):
                    self._jobs.settle(member.job, member.group, settled)
                self._transport.send(identity, wire.Alive())
            case wire.Hello():
                self._enter(identity, message, frames[0], now)
            case wire.Leave():
                self._remove(self._members.of_identity(identity, now), lost=False)
                self._transport.send(identity, wire.Left())
            case wire.Attach(request=request):
                member = self._members.of_identity(identity, now)
                self._regions[member.session].attach(message)
                self._transport.send(identity, wire.Attached(request))
            case wire.Detach(request=request, region=region):
                member = self._members.of_identity(identity, now)
                self._regions[member.session].detach(region)
                self._transport.send(identity, wire.Done(request, ()))
            case _:
                member = self._members.of_identity(identity, now)
                self._check_parents(member)
                origin = Origin(member.job, member.group, member.session, getattr(message, "request", 0))
                cost = cost_bytes(self._jobs, origin, message, len(frames[0]))
                if isinstance(message, wire.Register):
                    self._transport.expect(message.spec.chunk_bytes)
                payloads = [frame.buffer for frame in frames[1:]]
                self._carry_on(carry_out(self._jobs, origin, message, payloads, self._regions[member.session]))
                return cost
        return len(frames[0])

    def _enter(self, identity: bytes, hello: wire.Hello, frame: Any, now: float) -> None:
        try:
            key = self._transport.door.key_of(frame)
            account = self._accounts.of(hello, key)
        except ServerError as error:
            self._transport.door.tell(f"a client: {error}")
            raise
        job = self._accounts.name_of(hello)
        if hello.again:
            self._members.of_session(hello.session, now)
        if self._members.back(identity, hello.session, job, hello.group, now):
            self._transport.send(identity, self._welcome)
            return
        self._jobs.enter(job, hello.group, hello.groups, account.budget)
        self._members.enter(Member(identity, hello.session, job, hello.group, now, account, key))
        self._regions[hello.session] = Regions()
        self._transport.send(identity, self._welcome)

    def _remove(self, member: Member, lost: bool) -> None:
        # Their memory is their own again: no task may be left that uses it.
        while self._workers.backlog:
            self.follow(self._workers.drain())
        self._members.leave(member, lost)
        del self._regions[member.session]
        self._carry_on(self._jobs.leave(member.job, member.group, lost))
        if self._parents is not None and not self._members.there(member.job):
            self._parents.leave(member.job, lost)

    def hear_parents(self) -> None:
        """What is back from the parents; the groups of a job that has lost them are told once, and are refused then."""
        if self._parents is None:
            return
        before = {*self._parents.failed}
        for up, error in self._parents.collect():
            self._carry_on(up.then(error))
        for job in self._parents.failed.keys() - before:
            log.warning("job %r: %s", job, self._parents.failed[job])
            for member in [member for member in self._members if member.job == job]:
                self._refuse(member.identity, self._parents.failed[job], None)

    def _check_parents(self, member: Member) -> None:
        if self._parents is not None and member.job in self._parents.failed:
            raise self._parents.failed[member.job]

    def follow(self, done: Sequence[tuple[Task, Any]]) -> None:
        """What follows from tasks that are done."""
        self._carry_on(outcome for task, result in done for outcome in _after(task, result))

    def _carry_on(self, outcomes: Iterable[Outcome]) -> None:
        """Hand out tasks, and answer: what ends together for a request is told in one message.

        What came before an exception counts.
        """
        tasks: list[Task] = []
        together: dict[Origin, list[Answer]] = {}
        try:
            for outcome in outcomes:
                match outcome:
                    case Task():
                        tasks.append(outcome)
                    case Answer(origin=origin, error=HybridPSError() as error):
                        self._refuse_origin(origin, error)
                    case Answer(origin=origin):
                        together.setdefault(origin, []).append(outcome)
                    case Admitted(origin=origin, initialise=initialise, dropped=dropped):
                        self._answer(origin, wire.Registered(origin.request, initialise, dropped))
                    case Upward():
                        self._send_up(outcome)
        finally:
            for origin, answers in together.items():
                chunks = tuple(answer.chunk for answer in answers if answer.chunk is not None)
                self._answer(origin, wire.Done(origin.request, chunks), [answer.values for answer in answers])
            self._workers.hand(tasks)

    def _send_up(self, up: Upward) -> None:
        """Unless the job has gone meanwhile."""
        if self._parents is not None and self._members.there(up.job):
            self._parents.send(up)

    def _member(self, origin: Origin) -> Member | None:
        """Who is to be answered: the same life of the group, if it is there."""
        member = self._members.of_group(origin.job, origin.group)
        return member if member is not None and member.session == origin.epoch else None

    def _refuse_origin(self, origin: Origin, error: HybridPSError) -> None:
        member = self._member(origin)
        if member is not None:
            self._refuse(member.identity, error, origin.request)

    def _answer(self, origin: Origin, message: wire.Message, values: Sequence[np.ndarray | None] = ()) -> None:
        member = self._member(origin)
        if member is not None:
            member.account.sent_bytes += sum(array.nbytes for array in values if array is not None)
            self._transport.send(member.identity, message, values)


def _after(task: Task, result: Any) -> Iterator[Outcome]:
    """What follows from a task; whatever goes wrong, the others go on."""
    try:
        yield from task.then(result)
    except Exception:
        log.exception("what follows from a task has failed")


def _request_of(frames: list[Any]) -> int | None:
    """The number of a request that is refused unread."""
    try:
        return getattr(wire.decode_request(frames[0].buffer), "request", None) if frames else None
    except HybridPSError:
        return None
