"""Which clients a server has, and when each gave its last sign of life. Pure: the time is passed in."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from hybridps.errors import ServerError

_REMEMBERED = 4096


@dataclass(eq=False)
class Member:
    """A client: one group of one job. `identity` is the address of its socket."""

    identity: bytes
    session: int
    job: str
    group: int
    seen_seconds: float

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
        self._lost: deque[bytes | int] = deque(maxlen=_REMEMBERED)

    def __len__(self) -> int:
        return len(self._by_identity)

    @property
    def came(self) -> int:
        """Number of groups that were ever there."""
        return len(self._came)

    def check_new(self, identity: bytes, session: int) -> None:
        """Raise ServerError if a client with one of these is there."""
        if identity in self._by_identity or session in self._by_session:
            raise ServerError("this client has said hello already: open another one for another group")

    def enter(self, member: Member) -> None:
        self._by_identity[member.identity] = member
        self._by_session[member.session] = member
        self._by_group[member.job, member.group] = member
        self._came.add((member.job, member.group))

    def leave(self, member: Member, lost: bool = False) -> None:
        del self._by_identity[member.identity]
        del self._by_session[member.session]
        del self._by_group[member.job, member.group]
        if lost:
            self._lost += (member.identity, member.session)

    def of_identity(self, identity: bytes, now: float) -> Member:
        """The client at a socket, which gives a sign of life. Raises ServerError if it is unknown or was lost."""
        return self._seen(self._by_identity.get(identity), identity, now)

    def of_session(self, session: int, now: float) -> Member:
        """The client of a session, likewise."""
        return self._seen(self._by_session.get(session), session, now)

    def of_group(self, job: str, group: int) -> Member | None:
        return self._by_group.get((job, group))

    def silent(self, now: float) -> list[Member]:
        """The clients to be taken as lost."""
        return [member for member in self._by_identity.values() if now - member.seen_seconds > self._lost_seconds]

    def _seen(self, member: Member | None, name: bytes | int, now: float) -> Member:
        if member is None:
            raise ServerError(self._why_unknown(name))
        member.seen_seconds = now
        return member

    def _why_unknown(self, name: bytes | int) -> str:
        if name in self._lost:
            return (
                f"this group gave no sign of life for {self._lost_seconds:g} s, was taken as lost, and the others "
                "went on without it: register again with a new client, and raise lost_seconds if it was only slow"
            )
        return "this client is not known here: was the server or the connection restarted? Open a new client"
