"""The server without transport: jobs, their tables, and who is to be answered with what.

Driven by calls, one at a time. Groups of different jobs never meet.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hybridps.errors import ProtocolError, ServerError
from hybridps.ps.table import Outcome, Payload, Table, Terms, Ticket


class GroupTakenError(ServerError):
    """Another process is that group. It may be gone already, and not yet taken as lost."""


@dataclass
class _Job:
    groups: int
    present: set[int] = field(default_factory=set)
    gone: set[int] = field(default_factory=set)
    tables: dict[str, Table] = field(default_factory=dict)


class Shard:
    """What one server owns of every job. `memory_bytes` bounds the tables of all jobs together."""

    def __init__(self, memory_bytes: int | None = None) -> None:
        self._memory_bytes = memory_bytes
        self._jobs: dict[str, _Job] = {}

    def enter(self, job: str, group: int, groups: int) -> None:
        """Group `group` of `groups` takes part in `job`.

        Raises ServerError if the job has another number of groups, GroupTakenError if that group is there.
        """
        if not 0 <= group < groups:
            raise ProtocolError(f"group {group} is none of {groups} groups: they count from 0")
        there = self._jobs.get(job)
        if there is not None and there.present and there.groups != groups:
            raise ServerError(
                f"job {job!r} has groups={there.groups}, and this group gives {groups}: "
                "start all groups with the same number, or give this job another name"
            )
        if there is None or there.groups != groups:
            there = self._jobs[job] = _Job(groups)
        if group in there.present:
            raise GroupTakenError(
                f"group {group} of job {job!r} is there already: "
                "give each group its own index, or this job another name"
            )
        there.present.add(group)
        there.gone.discard(group)

    def leave(self, job: str, group: int, lost: bool = False) -> list[Outcome]:
        """A group goes. The last one takes the tables with it, unless it was `lost` and may come back."""
        there = self._jobs.get(job)
        if there is None or group not in there.present:
            return []
        there.present.discard(group)
        there.gone.add(group)
        outcomes = [outcome for table in there.tables.values() for outcome in table.leave(group)]
        if not there.present and not lost:
            del self._jobs[job]
        return outcomes

    def register(self, ticket: Ticket, table: str, terms: Terms, initialise: bool = False) -> list[Outcome]:
        """Join a table, and make it if it is new. `initialise` as in `Table.register`."""
        job = self._job(ticket)
        there = job.tables.get(table)
        if there is not None and there.abandoned and there.terms != terms:
            there = None
        if there is None:
            self._check_memory(table, terms)
            there = job.tables[table] = Table(table, terms, job.groups, job.gone)
        there.terms.check_same(terms, table)
        return there.register(ticket, initialise)

    def initialise(self, ticket: Ticket, table: str, chunk: int, payload: Payload | None) -> list[Outcome]:
        """The initial values of a chunk (None: zeros)."""
        return self._table(ticket, table).initialise(ticket, chunk, payload)

    def push(self, ticket: Ticket, table: str, chunk: int, payload: Payload, answered: bool) -> list[Outcome]:
        """The values of a chunk; `answered` by those of the round, or at once by nothing."""
        return self._table(ticket, table).push(ticket, chunk, payload, answered)

    def pull(self, ticket: Ticket, table: str, chunk: int) -> list[Outcome]:
        """The centre of a chunk is asked for."""
        return self._table(ticket, table).pull(ticket, chunk)

    def _job(self, ticket: Ticket) -> _Job:
        job = self._jobs.get(ticket.job)
        if job is None or ticket.group not in job.present:
            raise ServerError(f"group {ticket.group} of job {ticket.job!r} is not there")
        return job

    def _table(self, ticket: Ticket, name: str) -> Table:
        table = self._job(ticket).tables.get(name)
        if table is None:
            raise ServerError(f"job {ticket.job!r} has no table {name!r} here: register it first")
        return table

    def _check_memory(self, table: str, terms: Terms) -> None:
        if terms.server >= terms.servers:
            raise ProtocolError(f"server {terms.server} is none of {terms.servers} servers: they count from 0")
        if self._memory_bytes is None:
            return
        needed = 2 * terms.layout.nbytes // terms.servers
        held = sum(table.nbytes for job in self._jobs.values() for table in job.tables.values())
        if needed > self._memory_bytes - held:
            raise ServerError(
                f"table {table!r} needs about {needed} bytes here, and {max(self._memory_bytes - held, 0)} of "
                f"{self._memory_bytes} are free: use more servers, or a server with more memory"
            )
