"""The clients of a server: how they come and go, and when each gave its last sign of life. The time is an argument."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from hybridps.errors import ServerError
from hybridps.ps.joining import Terms
from hybridps.ps.model import GroupTakenError, IdleGroupError, Origin, Outcome, UnknownClientError
from hybridps.ps.server.admission import Account
from hybridps.ps.server.requests import Regions
from hybridps.ps.server.tables.jobs import Jobs
from hybridps.ps.wire import Heartbeat

if TYPE_CHECKING:
    from hybridps.ps.server.kept import KeptMemory

FAIR_READS = 4096
"""The socket reads its connections in turn. After this many messages, one of each has been read."""

JUDGED_PER_LOST = 64
"""How many times in `lost_seconds` the clients are judged."""

_SETTLED_PER_LOST = 8
"""How many times in `lost_seconds` a client may settle requests, because that visits all chunks."""

_ABSENT_LAPS = 3
"""How many times `lost_seconds` after a job's first group its tables stop waiting for groups that are not there."""

_REMEMBERED = 4096
_MOST_CAME = 1 << 16

_MEMBER, _CAME = "member ", "came "
"""The prefixes of the names of records: of clients, and of the groups that ever came."""


class _Kept(msgspec.Struct, frozen=True, array_like=True):
    """What outlives the process about a client."""

    session: int
    job: str
    group: int
    key: str


@dataclass(eq=False)
class Member:
    """A client: one group of one job. `identity` is the address of its socket."""

    identity: bytes
    session: int
    job: str
    group: int
    seen_seconds: float
    account: Account
    key: str = ""
    """The public key of its connections, if there are keys."""
    regions: Regions = field(default_factory=Regions)
    settled_seconds: float = -math.inf
    settled: int = 0
    """It had all answers to requests before this one, according to its last heartbeat."""
    waiting_seconds: float = 0.0
    """For how long it had waited for an answer, according to its last heartbeat."""
    asked_seconds: float = math.inf
    """When it last may have had a request under way; infinite before its first heartbeat."""
    wanted: bool = False
    """Whether another process waits to become that group."""
    overdue: tuple[float, int] | None = None
    """When it was first seen to be overdue: its last sign of life, and how many messages had been read."""
    fault: str = ""
    """Why it was treated as lost, as the group is told."""

    def __str__(self) -> str:
        return f"group {self.group} of job {self.job!r}"

    def origin(self, request: int) -> Origin:
        """Return what identifies a request of this client."""
        return Origin(self.job, self.group, self.session, request)

    @property
    def has_unserved(self) -> bool:
        """Whether messages that it has sent wait for the turn of its tenant."""
        return any(identity == self.identity for (identity, _), _ in self.account.waiting)


class _Lost(NamedTuple):
    """A client that was treated as lost, and why."""

    job: str
    group: int
    key: str
    fault: str


class Members:
    """The clients of a server. `jobs`: what they take part in. Times are seconds of one monotonic clock.

    `kept`: memory that outlives the process, if there is some. A group that has asked for nothing for
    `patience_seconds`, while others of its job waited as long, is lost too. While no group of a job is heard, as when
    the network is cut, none of them is treated as lost for `reconnect_seconds`, because no group waits for another one.
    """

    def __init__(
        self,
        lost_seconds: float,
        jobs: Jobs,
        kept: KeptMemory | None = None,
        patience_seconds: float = math.inf,
        reconnect_seconds: float = 0.0,
    ) -> None:
        self.lost_seconds = lost_seconds
        self._patience_seconds = patience_seconds
        self._reconnect_seconds = reconnect_seconds
        self._kept, self._jobs = kept, jobs
        self._quiet: dict[str, float] = {}
        """For jobs with groups of which none is heard: when that was last observed."""
        self.by_name: dict[bytes | int, Member] = {}
        """Every client by the address of its socket, and by its session."""
        self._came: set[tuple[str, int]] = set()
        self._began_seconds: dict[str, float] = {}
        self._looked_seconds = math.inf
        """When clients were last judged."""
        self._lost: dict[bytes | int, _Lost] = {}
        self._silence = f"gave no sign of life for {lost_seconds:g} s"
        self._idleness = f"asked for nothing for {patience_seconds:g} s, in which others waited"
        self._lost_groups: dict[str, dict[int, float]] = {}
        """For each job, the groups that were lost and are not back, and when each gave its last sign of life."""

    def restore(self, account_of: Callable[[str], Account], now: float) -> None:
        """Expect the clients of a previous process that was killed. `account_of` returns a job's account."""
        for record in self._kept.values(_CAME) if self._kept is not None else ():
            self._came.add(msgspec.msgpack.decode(record, type=tuple[str, int]))
        for record in self._kept.values(_MEMBER) if self._kept is not None else ():
            kept = msgspec.msgpack.decode(record, type=_Kept)
            member = Member(b"", kept.session, kept.job, kept.group, now, account_of(kept.job), kept.key)
            self.by_name[kept.session] = member
            self._began_seconds.setdefault(kept.job, now)
        self._jobs.restore(lambda job: account_of(job).budget, {(member.job, member.group) for member in self})

    def __iter__(self) -> Iterator[Member]:
        return iter(dict.fromkeys(self.by_name.values()))

    def finished(self, wanted: int | None) -> bool:
        """Return whether `wanted` groups have come, if that is not None, and all have gone."""
        return wanted is not None and len(self._came) >= wanted and not self.by_name

    def enter(self, new: Member, groups: int, again: bool = False, terms: Terms = Terms(), life: int = 0) -> None:  # noqa: B008
        """Let in a client of a job of `groups` groups, for the first time or again, perhaps at another socket.

        `again`: it was there before. `terms`, `life`: as in `Hello`. Raises ServerError if it is not let in, for
        example because it was lost.
        """
        comes_back = again and self._may_come_back(new)
        known = self.of(new.session, new.seen_seconds) if again and not comes_back else self.by_name.get(new.session)
        if known is None and new.identity not in self.by_name:
            self._enter_job(new, groups, comes_back, terms, life)
            self.by_name |= dict.fromkeys((new.identity, new.session), new)
            self._lost_groups.get(new.job, {}).pop(new.group, None)
            if len(self._came) < _MOST_CAME:
                self._came.add((new.job, new.group))
            self._began_seconds.setdefault(new.job, new.seen_seconds)
            if self._kept is not None:
                self._jobs.keep(idle=False)  # the job first: a group that is there without a client counts as lost
                if (new.job, new.group) in self._came:
                    self._kept.put(f"{_CAME}{new.job} {new.group} ", msgspec.msgpack.encode((new.job, new.group)))
                kept = _Kept(new.session, new.job, new.group, new.key)
                self._kept.put(f"{_MEMBER}{new.session} ", msgspec.msgpack.encode(kept))
            return
        if known is None or (known.job, known.group) != (new.job, new.group):
            raise ServerError("this client has said hello already: open another one for another group")
        if self.by_name.get(new.identity, known) is not known:
            raise ServerError("another client has said hello here: open a connection for each")
        self.by_name.pop(known.identity, None)  # the address of a member from before this process is not known
        known.identity, known.seen_seconds = new.identity, new.seen_seconds
        self.by_name[known.identity] = known

    def _may_come_back(self, new: Member) -> bool:
        """Return whether a client was treated as lost, and its group can continue as if it had not been."""
        lost = self._lost.get(new.session)
        if lost is None or lost[:3] != (new.job, new.group, new.key):
            return False
        job = self._jobs.get(new.job)
        return job is not None and job.may_come_back(new.group, new.session)

    def _enter_job(self, new: Member, groups: int, comes_back: bool, terms: Terms, life: int) -> None:
        try:
            self._jobs.enter(new.job, new.group, groups, new.account.budget, terms, life)
        except GroupTakenError:
            for member in self.there(new.job):
                member.wanted |= member.group == new.group
            raise
        job = self._jobs.get(new.job)
        if comes_back and job is not None:
            del self._lost[new.session]
            job.come_back(new.group)

    def leave(self, member: Member, lost: bool, early: bool = False) -> list[Outcome]:
        """Remove a client. Returns what follows for its job. `lost`: it did not say goodbye. `early`: as in `Leave`."""
        names = member.identity, member.session
        for name in names:
            self.by_name.pop(name, None)
        if self._kept is not None:
            self._kept.forget(f"{_MEMBER}{member.session} ")
        if lost:
            self._lost_groups.setdefault(member.job, {})[member.group] = member.seen_seconds
            why = member.fault or self._silence
            self._lost |= dict.fromkeys(names, _Lost(member.job, member.group, member.key, why))
            for name in [*islice(self._lost, max(0, len(self._lost) - _REMEMBERED))]:
                del self._lost[name]
        if not self.there(member.job):
            self._began_seconds.pop(member.job, None)
            self._lost_groups.pop(member.job, None)
        return self._jobs.leave(member.job, member.group, lost, early)

    def there(self, job: str) -> list[Member]:
        """Return the clients of a job."""
        return [member for member in self if member.job == job]

    def of(self, name: bytes | int, now: float) -> Member:
        """Return the client of that name, and note its sign of life. Raises UnknownClientError, also if it was lost."""
        member = self.by_name.get(name)
        if member is not None:
            member.seen_seconds = now
            return member
        raise self._unknown(name)

    def _unknown(self, name: bytes | int) -> UnknownClientError:
        if name in self._lost:
            fault = self._lost[name].fault
            return (IdleGroupError if fault == self._idleness else UnknownClientError)(
                f"this group {fault}, was treated as lost, and the others went on without it: register again with a "
                f"new client{', and raise lost_seconds if it was only slow' if fault == self._silence else ''}"
            )
        return UnknownClientError(
            "this client is not known here: was the server or the connection restarted? Open a new client"
        )

    def beat(self, heartbeat: Heartbeat, now: float) -> None:
        """Note a client's sign of life, unless a rank of its group gives none. Raises the errors of `of`."""
        session, settled = heartbeat.session, heartbeat.settled
        known = self.by_name.get(session)
        seen_seconds = -math.inf if known is None else known.seen_seconds
        member = self.of(session, max(seen_seconds, now - heartbeat.silent_seconds))
        if heartbeat.waiting_seconds != 0 or settled != member.settled or math.isinf(member.asked_seconds):
            member.asked_seconds = now
        member.settled, member.waiting_seconds = settled, heartbeat.waiting_seconds or 0.0
        if now - member.settled_seconds >= self.lost_seconds / _SETTLED_PER_LOST:
            member.settled_seconds = now
            self._jobs.settle(member.job, member.group, settled)

    def silent_groups(self, session: int, seconds: float, now: float) -> tuple[int, ...]:
        """Return the groups of a client's job without a sign of life for longer than `seconds`, including lost ones.

        The question is no sign of life. Raises UnknownClientError for an unknown session.
        """
        asks = self.by_name.get(session)
        if asks is None:
            raise self._unknown(session)
        seen = self._lost_groups.get(asks.job, {}) | {each.group: each.seen_seconds for each in self.there(asks.job)}
        return tuple(sorted(group for group, when in seen.items() if now - when > seconds))

    def silent(self, now: float, emptied: bool, reads: int) -> list[Member]:
        """Return the clients to be treated as lost, each with its `fault`.

        They are overdue although every message that may be theirs was read and served; or they are idle while another
        client has waited for `patience_seconds`. `reads`: the messages read so far. `emptied`: none was left unread.
        """
        passed, self._looked_seconds = now - self._looked_seconds, now
        if passed > self.lost_seconds / 2:
            # This process was stopped, and perhaps all others with it.
            for member in self:
                member.seen_seconds += passed
                member.asked_seconds += passed
        silent = self._idle(now)
        self._look_for_quiet(now)
        for member in self:
            quiet = -math.inf if member.wanted else self._quiet.get(member.job, -math.inf)
            if now - max(member.seen_seconds, quiet) <= self.lost_seconds:
                continue
            if member.overdue is None or member.overdue[0] != member.seen_seconds:
                # Not yet: if this server itself was suspended, messages that arrived meanwhile are read first.
                member.overdue = member.seen_seconds, reads
            elif emptied or reads - member.overdue[1] > FAIR_READS:
                member.fault = self._silence
                silent.append(member)
        # If messages wait, the tenant rests, and the client may have left in one of them.
        return [member for member in dict.fromkeys(silent) if not member.has_unserved]

    def _idle(self, now: float) -> list[Member]:
        """Return the clients that have asked for nothing while others of their jobs waited, except for a meeting."""
        patience = self._patience_seconds
        waiting = [member for member in self if member.waiting_seconds > patience]
        waited = {each.job for each in waiting if (job := self._jobs.get(each.job)) and job.trains(each.group)}
        idle = [member for member in self if member.job in waited and now - member.asked_seconds > patience]
        for member in idle:
            member.fault = self._idleness
        return idle

    def _look_for_quiet(self, now: float) -> None:
        """Note the jobs of which no group is heard. Groups that can be heard beat more often than this looks back."""
        heard: dict[str, float] = {}
        for member in self:
            heard[member.job] = max(member.seen_seconds, heard.get(member.job, -math.inf))
        self._quiet = {job: when for job, when in self._quiet.items() if job in heard}
        for job, when in heard.items():
            if self.lost_seconds / 2 < now - when < self._reconnect_seconds:
                self._quiet[job] = now

    def begin_without_absent(self, now: float) -> list[Outcome]:
        """Let jobs begin whose first group has waited long enough for the others."""
        late = now - _ABSENT_LAPS * self.lost_seconds
        begun = [job for job, began in self._began_seconds.items() if began < late]
        self._began_seconds |= dict.fromkeys(begun, math.inf)
        return [outcome for job in begun for outcome in self._jobs.begin_without_absent(job)]
