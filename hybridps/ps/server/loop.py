"""The server's loop: what a message passes. It never computes and never compiles: that is done by workers."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import zmq

from hybridps.errors import HybridPSError, ProtocolError, ServerError
from hybridps.ps import wire
from hybridps.ps.model import Admitted, Answer, Origin, Outcome, ParentRequest, Task, UnknownClientError
from hybridps.ps.rules.finite import NotFiniteError
from hybridps.ps.server.admission import CONTROL_WEIGHT, FRAME_BYTES, MESSAGE_BYTES, Account, Accounts, FairQueue
from hybridps.ps.server.door import MOST_UNREAD
from hybridps.ps.server.launchers import Launchers
from hybridps.ps.server.members import JUDGED_PER_LOST, Member, Members
from hybridps.ps.server.profiles import PAGE_BYTES, Profiles
from hybridps.ps.server.reception import Reception
from hybridps.ps.server.requests import carry_out
from hybridps.ps.server.snapshots import Snapshots
from hybridps.ps.server.tables.jobs import Jobs
from hybridps.ps.server.transport import Transport
from hybridps.ps.server.upstream import Parents
from hybridps.ps.server.workers import Workers, as_refusal

if TYPE_CHECKING:
    from hybridps.ps.server.metrics import Observer

log = logging.getLogger("hybridps.ps")

_LONGEST_LAP_SECONDS = 0.05
"""A message that never ends wakes nobody: what it takes meanwhile is kept in memory."""

_MESSAGES_PER_LAP = 32

_MOST_BACKLOG = 32
"""Tasks that are handed out in advance: what a tenant waits for that has just come."""

_LARGEST_GREETING_BYTES = 1 << 14
"""A client that is not known yet cannot say more."""


@dataclass(eq=False)
class Loop:
    """What a server does with the messages of its clients. `parents`: of a rack server."""

    transport: Transport
    jobs: Jobs
    members: Members
    accounts: Accounts
    workers: Workers
    parents: Parents | None
    snapshots: Snapshots | None
    """Takes snapshots of the tables, if they are wanted."""
    life: int
    """How many processes have been this server before, and were killed."""
    stop_after_groups: int | None
    refused: int = 0
    """Number of requests that were refused."""
    stopping: bool = False
    observer: Observer | None = None
    """Reads the counters, if there is one."""
    profiles: Profiles = field(default_factory=Profiles)
    queue: FairQueue = field(default_factory=FairQueue)
    judged_seconds: float = -math.inf

    def __post_init__(self) -> None:
        self.launchers = launchers = Launchers(self.jobs, self.members)
        here = self.transport.door, self.accounts, self.jobs, self.members
        self._reception = Reception(*here, launchers, self.parents is not None, self.life)

    def run(self) -> None:
        """Serve until `stopping`, or until so many groups came and none is there any more."""
        poller = zmq.Poller()
        for each in (*self.transport.door.polled, self.workers.ready, *([self.parents.ready] if self.parents else [])):
            poller.register(each, zmq.POLLIN)
        while not self.stopping and not self.members.finished(self.stop_after_groups):
            events = dict(poller.poll(math.ceil(1000 * self._idle_seconds())))
            self.transport.door.serve()
            self._drop_lost(emptied=self._read_waiting())
            self._serve_waiting()
            self._follow(self.workers.collect(self.workers.ready in events))
            self._hear_parents()
            self.launchers.tell_groups()
            if self.observer is not None:
                self.observer.look(time.monotonic())
            if self.snapshots is not None:
                self.workers.hand(self.snapshots.look(self.jobs))

    def _idle_seconds(self) -> float:
        """How long there is nothing to do if nothing comes."""
        if self.workers.done_at_once:
            return 0.0
        rests = math.inf if self.workers.backlog >= _MOST_BACKLOG else self.queue.rest_seconds(time.monotonic())
        return min(_LONGEST_LAP_SECONDS, self.members.lost_seconds / 4, rests)

    def _read_waiting(self) -> bool:
        """Read the messages that wait at the socket, a bounded number; returns whether none is left."""
        for _ in range(_MESSAGES_PER_LAP):
            received = self.transport.receive()
            if received is None:
                return True
            self.read(*received)
        return False

    def read(self, identity: bytes, frames: list[Any]) -> None:
        """What members send waits for their turn; greetings and signs of life are answered at once."""
        member = self.members.by_name.get(identity)
        if member is None:
            self._serve(identity, frames, None)
            return
        if frames and member.key != self.transport.door.key_of(frames[0]):
            # A peer may choose its socket's name, that of a client which is gone too.
            error = UnknownClientError("this socket has the name of another tenant's client: open a new one")
            self._serve(identity, frames, None, error)
            return
        member.seen_seconds = time.monotonic()
        try:
            if len(frames) > wire.MOST_CHUNKS + 1:
                raise ProtocolError(f"a message has {wire.MOST_CHUNKS} payload frames at most: send several")
            nbytes = sum(len(frame) + FRAME_BYTES for frame in frames)
            self.jobs.evict_for(member.account.budget, nbytes + MESSAGE_BYTES)
            self.queue.put(member.account, (identity, frames), nbytes)
        except ServerError as refused:
            self._serve(identity, frames, member.account, refused)

    def _serve_waiting(self) -> None:
        """Carry out messages of members, whose turn it is, as long as there is little work in advance."""
        for _ in range(_MESSAGES_PER_LAP):
            if self.members.finished(self.stop_after_groups) or self.workers.backlog >= _MOST_BACKLOG:
                return
            now = time.monotonic()
            found = self.queue.take(now)
            if found is None:
                return
            account, (identity, frames) = found
            self.queue.charge(account, self._serve(identity, frames, account), now)

    def _serve(
        self, identity: bytes, frames: list[Any], account: Account | None, refused: ServerError | None = None
    ) -> int:
        """Carry out one message, and return what it cost in bytes. Whatever it is, the server goes on.

        `account`: of whom it is; None if the client is not known. `refused`: why it is only looked at.
        """
        request = None
        try:
            if not frames:
                raise ProtocolError("the message has no frames: it begins with a control frame")
            if account is None and len(frames[0]) > _LARGEST_GREETING_BYTES:
                raise UnknownClientError("this client is not known here: it must say hello first")
            message = wire.decode_request(frames[0].buffer)
            request = getattr(message, "request", None)
            if refused is not None:
                raise refused
            if not self.profiles.of:
                return self._handle(identity, message, frames, time.monotonic())
            with self.profiles.recording(self.members, identity, message):
                return self._handle(identity, message, frames, time.monotonic())
        except Exception as error:
            self._refuse(identity, account, as_refusal(error), request)
        return sum(len(frame) for frame in frames)

    def _handle(self, identity: bytes, message: wire.Request, frames: list[Any], now: float) -> int:
        match message:
            case wire.OfTable():
                member = self.members.of(identity, now)
                if self.parents is not None and member.job in self.parents.failed:
                    raise self.parents.failed[member.job]
                if isinstance(message, wire.Register):
                    self.transport.door.expect(message.spec.chunk_bytes)
                origin = Origin(member.job, member.group, member.session, message.request)
                payloads = [frame.buffer for frame in frames[1:]]
                cost, outcomes = carry_out(self.jobs, origin, message, payloads, member.regions)
                self._carry_on(outcomes)
                return CONTROL_WEIGHT * len(frames[0]) if cost is None else cost
            case wire.Back():
                known = self.members.by_name.get(identity)
                if known is not None:  # else the connection broke again: a greeting follows, and all of this once more
                    self._carry_on(self.jobs.be_back(known.job, known.group))
            case wire.Leave(early=early):
                self._remove(self.members.of(identity, now), lost=False, early=early)
                self.transport.send(identity, wire.Alive())
            case wire.Profile(request=request) | wire.ProfilePage(request=request):
                member = self.members.of(identity, now)
                pages = self.profiles.carry_out(self.jobs, member, message)
                member.account.sent_bytes += sum(page.nbytes for page in pages)
                self.transport.send(identity, wire.Done(request, ()), pages)
                return PAGE_BYTES
            case _:
                told = self._reception.answer(identity, message, self.transport.door.key_of(frames[0]), now)
                self._keep()
                self.transport.send(identity, told)
        return len(frames[0])

    def _remove(self, member: Member, lost: bool, early: bool = False) -> None:
        # Their memory is their own again: no task may be left that uses it.
        while self.workers.backlog:
            self._follow(self.workers.collect(is_ready=False, wait=True))
        self._carry_on(self.members.leave(member, lost, early))
        if not self.members.there(member.job):
            self.profiles.of.pop(member.job, None)
            if self.parents is not None:
                self.parents.leave(member.job, lost)

    def _drop_lost(self, emptied: bool) -> None:
        """Go on without clients that gave no sign of life, or do not read their answers."""
        while self.transport.unread:  # an answer of theirs was dropped: they cannot go on
            member = self.members.by_name.get(self.transport.unread.pop())
            if member is not None:
                self._lose(member, f"left {MOST_UNREAD} answers unread")
        for ended, member in self.launchers.take_ended() if emptied else ():
            self._carry_on(self.jobs.end(*ended))
            if member is not None:
                self._lose(member, "has ended", ", as its launcher says")
        now = time.monotonic()
        if now < self.judged_seconds + self.members.lost_seconds / JUDGED_PER_LOST:
            return
        self.judged_seconds = now
        for member in self.members.silent(now, emptied, self.transport.reads):
            self._lose(member, member.fault)
        self.launchers.look(now)
        self._carry_on(self.members.begin_without_absent(now))

    def _lose(self, member: Member, fault: str, source: str = "") -> None:
        log.warning("%s %s: lost", member, fault)
        member.fault = fault + source
        self._remove(member, lost=True)

    def _hear_parents(self) -> None:
        """What is back from the parents; the groups of a job that has lost them are told once, and are refused then."""
        if self.parents is None:
            return
        before = {*self.parents.failed}
        for up, error in self.parents.collect():
            self._carry_on(up.then(error))
        for job in self.parents.failed.keys() - before:
            log.warning("job %r: %s", job, self.parents.failed[job])
            for member in self.members.there(job):
                self._refuse(member.identity, member.account, self.parents.failed[job], None)

    def _follow(self, done: Sequence[tuple[Task, Any]]) -> None:
        """What follows from tasks that are done; whatever goes wrong, the others go on."""
        outcomes: list[Outcome] = []
        for task, result in done:
            try:
                outcomes += task.then(result)
            except Exception:
                log.exception("what follows from a task has failed")
        self._carry_on(outcomes)

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
                        tasks.append(self.profiles.timed(outcome) if self.profiles.of else outcome)
                    case Answer(origin=origin, chunk=chunk, error=HybridPSError() as error):
                        member = self.members.by_name.get(origin.epoch)
                        if member is not None:
                            self._refuse(member.identity, member.account, error, origin.request, chunk)
                    case Answer(origin=origin):
                        together.setdefault(origin, []).append(outcome)
                    case Admitted(origin, initialise, dropped, start):
                        self._keep()
                        self._answer(origin, wire.Registered(origin.request, initialise, dropped, start))
                    case ParentRequest(table=table) if self.parents is not None and self.members.there(table.job):
                        self.parents.send(outcome)
        finally:
            self._keep()
            for origin, answers in together.items():
                chunks = tuple(answer.chunk for answer in answers if answer.chunk is not None)
                not_finite = tuple(place for answer in answers for place in answer.not_finite)
                self._answer(origin, wire.Done(origin.request, chunks, not_finite), answers)
            self.workers.hand(tasks)

    def _keep(self) -> None:
        """Before anybody is told: what has changed outlives this process."""
        self.jobs.keep(idle=not self.workers.backlog)

    def _answer(self, origin: Origin, message: wire.Message, answers: Sequence[Answer] = ()) -> None:
        """Answer the same life of the group, if it is there."""
        member = self.members.by_name.get(origin.epoch)
        if member is not None:
            values = [answer.values for answer in answers if answer.values is not None]
            member.account.sent_bytes += sum(array.nbytes for array in values)
            self.transport.send(member.identity, message, values)

    def _refuse(
        self,
        identity: bytes,
        account: Account | None,
        error: HybridPSError,
        request: int | None,
        chunk: int | None = None,
    ) -> None:
        self.refused += 1
        if account is not None:
            account.refused += 1
            account.not_finite += isinstance(error, NotFiniteError)
        log.info("refused: %s", error)
        self.transport.send(identity, wire.refusal(error, request, chunk))
