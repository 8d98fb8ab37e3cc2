"""The server's loop: the path of a message. It never computes and never compiles; worker threads do that."""

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
from hybridps.ps.model import Admitted, Answer, Met, Origin, Outcome, ParentRequest, Task, UnknownClientError
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
"""The loop wakes at least this often, because an endless message wakes nothing while it fills the memory."""

_MESSAGES_PER_LAP = 32

_MOST_BACKLOG = 32
"""The number of tasks that are handed out in advance. A tenant whose message has just arrived waits for these."""

_LARGEST_GREETING_BYTES = 1 << 14
"""The size limit for a client that is not known yet."""


@dataclass(eq=False)
class Loop:
    """Handles the messages of a server's clients. `parents`: those of a rack server."""

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
    """The number of requests that were refused."""
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
        """Serve until `stopping`, or until `stop_after_groups` groups have come and all have gone."""
        poller = zmq.Poller()
        for each in (*self.transport.door.polled, self.workers.ready, *([self.parents.ready] if self.parents else [])):
            poller.register(each, zmq.POLLIN)
        while not self.stopping and not self.members.finished(self.stop_after_groups):
            events = dict(poller.poll(math.ceil(1000 * self._idle_seconds())))
            self.transport.door.serve(events)
            self._drop_lost(emptied=self._read_waiting())
            self._serve_waiting()
            self._handle_results(self.workers.collect(self.workers.ready in events))
            self._collect_from_parents()
            self.launchers.tell_groups()
            if self.observer is not None:
                self.observer.look(time.monotonic())
            if self.snapshots is not None:
                self.workers.hand(self.snapshots.look(self.jobs))

    def _idle_seconds(self) -> float:
        """Return how long the loop may wait for messages."""
        if self.workers.done_at_once:
            return 0.0
        rests = math.inf if self.workers.backlog >= _MOST_BACKLOG else self.queue.rest_seconds(time.monotonic())
        return min(_LONGEST_LAP_SECONDS, self.members.lost_seconds / 4, rests)

    def _read_waiting(self) -> bool:
        """Read a bounded number of messages from the socket. Returns whether none is left."""
        for _ in range(_MESSAGES_PER_LAP):
            received = self.transport.receive()
            if received is None:
                return True
            self.read(*received)
        return False

    def read(self, identity: bytes, frames: list[Any]) -> None:
        """Queue the message of a member for its turn. Greetings and signs of life are answered at once."""
        member = self.members.by_name.get(identity)
        if member is None:
            self._serve(identity, frames, None)
            return
        if frames and member.key != self.transport.door.key_of(frames[0]):
            # A peer may choose the name of its socket, even that of a client that is gone.
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
        """Carry out messages whose turn it is, as long as few tasks are handed out in advance."""
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
        """Carry out one message, and return its cost in bytes. The server continues after any error.

        `account`: that of the sender; None if the client is not known. `refused`: the error with which the message is
        refused.
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
                payloads = [frame.buffer for frame in frames[1:]]
                cost, outcomes = carry_out(self.jobs, member.origin(message.request), message, payloads, member.regions)
                self._handle_outcomes(outcomes)
                return CONTROL_WEIGHT * len(frames[0]) if cost is None else cost
            case wire.Meet(request=request, number=number, trains=trains):
                self._handle_outcomes(self.jobs.meet(self.members.of(identity, now).origin(request), number, trains))
            case wire.Back():
                known = self.members.by_name.get(identity)
                if known is not None:  # otherwise the connection broke again, and all of this will be repeated
                    self._handle_outcomes(self.jobs.be_back(known.job, known.group))
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
        # The group's memory is its own again after this, so no task that uses it may be left.
        while self.workers.backlog:
            self._handle_results(self.workers.collect(is_ready=False, wait=True))
        self._handle_outcomes(self.members.leave(member, lost, early))
        if not self.members.there(member.job):
            self.profiles.of.pop(member.job, None)
            if self.parents is not None:
                self.parents.leave(member.job, lost, early)

    def _drop_lost(self, emptied: bool) -> None:
        """Remove clients that gave no sign of life, or do not read their answers."""
        while self.transport.unread:  # one of their answers was dropped, so they cannot continue
            member = self.members.by_name.get(self.transport.unread.pop())
            if member is not None:
                self._lose(member, f"left {MOST_UNREAD} answers unread")
        for ended, member in self.launchers.take_ended() if emptied else ():
            self._handle_outcomes(self.jobs.end(*ended))
            if member is not None:
                self._lose(member, "has ended, as its launcher says")
        now = time.monotonic()
        if now < self.judged_seconds + self.members.lost_seconds / JUDGED_PER_LOST:
            return
        self.judged_seconds = now
        for member in self.members.silent(now, emptied, self.transport.reads):
            self._lose(member, member.fault)
        self.launchers.look(now)
        self._handle_outcomes(self.members.begin_without_absent(now))

    def _lose(self, member: Member, fault: str) -> None:
        log.warning("%s %s: lost", member, fault)
        member.fault = fault
        self._remove(member, lost=True)

    def _collect_from_parents(self) -> None:
        """Handle what the parents sent back. Groups of a job that has lost them are told once, and then refused."""
        if self.parents is None:
            return
        before = {*self.parents.failed}
        for up, error in self.parents.collect():
            self._handle_outcomes(up.then(error))
        for job in self.parents.failed.keys() - before:
            log.warning("job %r: %s", job, self.parents.failed[job])
            for member in self.members.there(job):
                self._refuse(member.identity, member.account, self.parents.failed[job], None)

    def _handle_results(self, done: Sequence[tuple[Task, Any]]) -> None:
        """Handle the outcomes of completed tasks. An error in one does not affect the others."""
        if not done:
            return
        outcomes: list[Outcome] = []
        for task, result in done:
            try:
                outcomes += task.then(result)
            except Exception:
                log.exception("the result of a task cannot be handled")
        self._handle_outcomes(outcomes)

    def _handle_outcomes(self, outcomes: Iterable[Outcome]) -> None:
        """Hand out tasks, and send answers. The answers to one request that are ready together go in one message.

        Outcomes before an exception count.
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
                    case Met(origin, number, trains, newcomers, giver, finished):
                        self._keep()
                        self._answer(origin, wire.Met(origin.request, number, trains, newcomers, giver, finished))
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
        """Make changes outlive this process. This comes before anybody is told about them."""
        self.jobs.keep(idle=not self.workers.backlog)

    def _answer(self, origin: Origin, message: wire.Message, answers: Sequence[Answer] = ()) -> None:
        """Send an answer to the same life of the group, if it is there."""
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
