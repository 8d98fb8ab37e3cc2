"""What the launchers of jobs tell a server, and are told: groups that end or join, and the progress of a job."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from hybridps.errors import ServerError
from hybridps.ps.server.members import Member, Members
from hybridps.ps.server.tables.jobs import Jobs
from hybridps.ps.wire import Alive, AskToJoin, EndOfGroup, ToldToJoin

OnGroups = Callable[[str, Sequence[int], Sequence[int], int, int], None]
"""Called with the groups that have joined a job, those on their way, and the numbers of its groups and workers."""

_AWAITED_SECONDS = 300.0
"""How long a number is reserved for a group that has not come yet: its processes must start first."""


class EndedGroup(NamedTuple):
    """A group whose processes have ended."""

    job: str
    group: int
    returns: bool
    """Whether it is started again."""
    life: int
    """How often it was started again before."""


class Launchers:
    """The launchers of the groups in `jobs`. Only the loop uses it, but any thread may add to `ended` and `done`."""

    def __init__(self, jobs: Jobs, members: Members) -> None:
        self._jobs = jobs
        self._members = members
        self.ended: deque[EndedGroup] = deque()
        self.done: dict[str, tuple[float, int]] = {}
        """The epochs and steps that jobs have done."""
        self.on_groups: OnGroups = lambda job, joined, awaited, groups, workers: None
        self._awaited: dict[str, float] = {}
        """The jobs that have reserved numbers for groups that have not come, and since when."""

    def answer(self, message: AskToJoin | EndOfGroup, job: str, tenant: str) -> ToldToJoin | Alive:
        """Return the answer to the launcher of groups that join a job. Raises ServerError if they cannot join.

        `job`: its name at this server; empty for the only job of a tenant.
        """
        if isinstance(message, AskToJoin):
            return self._jobs.join(job or self._only_job(tenant), message.sizes)
        known = self._jobs.get(job)
        if known is None or known.places.tickets.get(message.group) != message.ticket:
            raise ServerError(f"the ticket is not that of group {message.group}: its launcher says when it has ended")
        self.ended.append(EndedGroup(job, message.group, message.returns, message.life))
        return Alive()

    def take_ended(self) -> list[tuple[EndedGroup, Member | None]]:
        """Return the groups whose processes have ended, with their clients if these have not left.

        All messages of these groups have been served. Their clients count as silent from now on, for any length of
        time.
        """
        found: dict[tuple[str, int], tuple[EndedGroup, Member | None]] = {}
        for _ in range(len(self.ended)):
            ended = self.ended.popleft()
            member = next((each for each in self._members.there(ended.job) if each.group == ended.group), None)
            if member is not None and member.has_unserved:
                self.ended.append(ended)  # its tenant rests, and the group may have left in a message that still waits
                continue
            job = self._jobs.get(ended.job)
            if member is not None and job is not None and job.lives.get(ended.group, 0) > ended.life:
                continue  # a late report about an earlier life
            if member is not None:
                member.seen_seconds = -math.inf
            found[ended.job, ended.group] = ended, member
        return [*found.values()]

    def look(self, now: float) -> None:
        """Note the progress of jobs, and stop waiting for groups that were given numbers and do not come."""
        while self.done:
            name, done = self.done.popitem()
            self._jobs.note_done(name, *done)
        self._awaited = {job: self._awaited.get(job, now) for job in self._jobs.awaits()}
        for job in [job for job, since in self._awaited.items() if now - since > _AWAITED_SECONDS]:
            self._jobs.stop_awaiting(job)

    def tell_groups(self) -> None:
        """Report the groups of jobs whose groups have changed."""
        while self._jobs.changed:
            name, job = self._jobs.changed.popitem()
            self.on_groups(name, sorted(job.joined), sorted(job.places.awaited), *job.counted)

    def _only_job(self, tenant: str) -> str:
        """Return the name of the only job of a tenant that has clients. Raises ServerError unless there is one."""
        names = sorted({member.job for member in self._members if member.job.rpartition("/")[0] == tenant})
        if len(names) == 1:
            return names[0]
        listed = ", ".join(name.rpartition("/")[2] for name in names[:10])
        raise ServerError(
            f"the jobs {listed} run here: give the name of one with --set job=NAME"
            if names
            else "no job runs here that could be joined: start it first, without --join"
        )
