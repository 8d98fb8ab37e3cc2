"""Which clients a server has, and when each gave its last sign of life. Pure: the time is passed in."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from hybridps.errors import ServerError
from hybridps.ps.model import UnknownClientError
from hybridps.ps.server.admission import Account

FAIR_READS = 4096
"""The socket takes the messages of its connections in turn: after so many, one of each was read."""

_REMEMBERED = 4096
_MOST_CAME = 1 << 16


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
    settled_seconds: float = -math.inf
    overdue: tuple[float, int] | None = None
    """When it was heard last, and how many messages had been read, as it was first seen to be overdue."""

    def may_settle(self, now: float, interval_seconds: float) -> bool:
        """Whether it has not settled requests for so long."""
        if now - self.settled_seconds < interval_seconds:
            return False
        self.settled_seconds = now
        return True

    def __str__(self) -> str:
        return f"group {self.group} of job {self.job!r}"


class Members:
    """The clients that are there. Times are seconds of one monotonic clock."""

    def __init__(self, lost_seconds: float) -> None:
        self._lost_seconds = lost_seconds
        self._by_identity: dict[bytes, Member] = {}
        self._by_session: dict[int, Member] = {}
        self._by_group: dict[tuple[str, int], Member] = {}
        self._came: set[tuple[str, int]] = set()
        self._began_seconds: dict[str, float] = {}
        self._lost: dict[bytes | int, None] = {}
        self._emptied, self._reads = True, 0

    def __iter__(self) -> Iterator[Member]:
        return iter([*self._by_identity.values()])

    def __len__(self) -> int:
        return len(self._by_identity)

    @property
    def came(self) -> int:
        """Number of groups that were ever there."""
        return len(self._came)

    def back(self, identity: bytes, session: int, job: str, group: int, now: float) -> bool:
        """Whether this is the client of that session, which came back, maybe at another socket; false if it is new.

        Raises ServerError for a second client of a socket or a session.
        """
        member = self._by_session.get(session)
        if member is None and identity not in self._by_identity:
            return False
        if member is None or (member.job, member.group) != (job, group):
            raise ServerError("this client has said hello already: open another one for another group")
        if self._by_identity.get(identity, member) is not member:
            raise ServerError("another client has said hello here: open a connection for each")
        del self._by_identity[member.identity]
        member.identity, member.seen_seconds = identity, now
        self._by_identity[identity] = member
        return True

    def enter(self, member: Member) -> None:
        self._by_identity[member.identity] = member
        self._by_session[member.session] = member
        self._by_group[member.job, member.group] = member
        if len(self._came) < _MOST_CAME:
            self._came.add((member.job, member.group))
        self._began_seconds.setdefault(member.job, member.seen_seconds)

    def leave(self, member: Member, lost: bool = False) -> None:
        del self._by_identity[member.identity]
        del self._by_session[member.session]
        del self._by_group[member.job, member.group]
        if not self.there(member.job):
            self._began_seconds.pop(member.job, None)
        if lost:
            self._lost |= dict.fromkeys((member.identity, member.session))
            for name in [*islice(self._lost, max(0, len(self._lost) - _REMEMBERED))]:
                del self._lost[name]

    def there(self, job: str) -> bool:
        """Whether a job has clients."""
        return any(job == theirs for theirs, _ in self._by_group)

    def begun_before(self, seconds: float) -> list[str]:
        """The jobs whose first group came before that time; each is told once."""
        begun = [job for job, began in self._began_seconds.items() if began < seconds]
        for job in begun:
            self._began_seconds[job] = math.inf
        return begun

    def of_identity(self, identity: bytes, now: float) -> Member:
        """The client at a socket, which gives a sign of life. Raises UnknownClientError, also if it was lost."""
        return self._seen(self._by_identity.get(identity), identity, now)

    def of_session(self, session: int, now: float) -> Member:
        """The client of a session, likewise."""
        return self._seen(self._by_session.get(session), session, now)

    def at(self, identity: bytes, now: float) -> Member | None:
        """The client at a socket, if there is one; it gives a sign of life."""
        member = self._by_identity.get(identity)
        if member is not None:
            member.seen_seconds = now
        return member

    def of_group(self, job: str, group: int) -> Member | None:
        return self._by_group.get((job, group))

    def heard(self, emptied: bool, reads: int) -> None:
        """So many messages were read so far; `emptied`: none was left waiting."""
        self._emptied, self._reads = emptied, reads

    def silent(self, now: float) -> list[Member]:
        """The clients to be taken as lost: overdue, though every message that may be theirs was read."""
        return [member for member in self._by_identity.values() if self._is_silent(member, now)]

    def _is_silent(self, member: Member, now: float) -> bool:
        if now - member.seen_seconds <= self._lost_seconds:
            return False
        if member.overdue is None or member.overdue[0] != member.seen_seconds:
            # Not yet: if this server itself was suspended, what was sent meanwhile comes first.
            member.overdue = member.seen_seconds, self._reads
            return False
        return self._emptied or self._reads - member.overdue[1] > FAIR_READS

    def _seen(self, member: Member | None, name: bytes | int, now: float) -> Member:
        if member is None:
            raise UnknownClientError(self._why_unknown(name))
        member.seen_seconds = now
        return member

    def _why_unknown(self, name: bytes | int) -> str:
        if name in self._lost:
            return (
                f"this group gave no sign of life for {self._lost_seconds:g} s, was taken as lost, and the others "
                "went on without it: register again with a new client, and raise lost_seconds if it was only slow"
            )
        return "this client is not known here: was the server or the connection restarted? Open a new client"
