"""What a server answers at once: new clients, signs of life, questions about a job. Only the loop uses it."""

from __future__ import annotations

from dataclasses import dataclass

from hybridps.errors import ServerError
from hybridps.ps import wire
from hybridps.ps.server.admission import Accounts
from hybridps.ps.server.door import Gatekeeper
from hybridps.ps.server.launchers import Launchers
from hybridps.ps.server.members import Member, Members
from hybridps.ps.server.tables.jobs import Jobs

AtOnce = wire.Hello | wire.Heartbeat | wire.Silence | wire.Attach | wire.Detach | wire.AskToJoin | wire.EndOfGroup
"""The messages that are answered here."""


@dataclass(frozen=True, eq=False)
class Reception:
    """The reception of the server behind `door`. `life`: how many of its processes were killed before."""

    door: Gatekeeper
    accounts: Accounts
    jobs: Jobs
    members: Members
    launchers: Launchers
    has_parent: bool
    life: int

    def answer(self, identity: bytes, message: AtOnce, key: str, now: float) -> wire.Answer:
        """Return the answer to a message from a socket whose connection has that public key, if there are keys.

        Raises ServerError if the sender may not send it.
        """
        match message:
            case wire.Hello():
                self._let_in(identity, message, key, now)
                return wire.Welcome(wire.VERSION, self.has_parent, self.life)
            case wire.Heartbeat(session=session):
                self.members.beat(message, now)
                known = self.jobs.get(self.members.by_name[session].job)
                return wire.Alive(0, 0, 0) if known is None else wire.Alive(*known.counted, known.behind)
            case wire.Silence(session=session, seconds=seconds):
                return wire.Silent(self.members.silent_groups(session, seconds, now))
            case wire.Attach(request=request) | wire.Detach(request=request):
                self.members.of(identity, now).regions.change(message)
                return wire.Done(request, ())
            case _:
                job, tenant = self.accounts.name_of(message, key), message.tenant if key else ""
                return self.launchers.answer(message, job, tenant)

    def _let_in(self, identity: bytes, hello: wire.Hello, key: str, now: float) -> None:
        """Let a client in, for the first time or again."""
        try:
            account, job = self.accounts.admit(hello, key)
        except ServerError as error:
            self.door.refuse(f"a client: {error}")
            raise
        member = Member(identity, hello.session, job, hello.group, now, account, key)
        self.members.enter(member, hello.groups, hello.again, hello.terms, hello.life)
