"""The server without transport: jobs, their tables, and who is to be answered with what.

Driven by calls, one at a time, of the loop. Groups of different jobs never meet.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence, Set
from functools import partial
from typing import TYPE_CHECKING

from hybridps.errors import HybridPSError, LayoutError, ServerError
from hybridps.ps.joining import MOST_JOINED, Terms, ToldToJoin
from hybridps.ps.model import Admitted, Answer, GroupTakenError, Origin, Outcome, SnapshotStart, TableSpec, Task
from hybridps.ps.rules import warm_up
from hybridps.ps.server.admission import Budget
from hybridps.ps.server.tables.images import KeptJobs
from hybridps.ps.server.tables.job import Job, digest, find_start, table_bytes
from hybridps.ps.server.tables.places import Places
from hybridps.ps.server.tables.table import Table, check_spec
from hybridps.ps.server.workers import as_refusal

if TYPE_CHECKING:
    from hybridps.ps.server.snapshots.files import FoundTable
    from hybridps.ps.server.snapshots.folder import SnapshotFolder

MOST_JOBS, MOST_TABLES = 4096, 4096
"""Of a server, and of a job."""


class Jobs:
    """What one server owns of every job, shared out over `threads`.

    `memory_bytes` bounds the memory of all jobs together. `check_finite`: sums refuse NaN and Inf too; other rules
    always do. `make_table`: `Table`, or that of a rack server. `kept`: what outlives it.
    """

    def __init__(
        self,
        memory_bytes: int | None = None,
        threads: int = 1,
        check_finite: bool = False,
        make_table: type[Table] = Table,
        kept: KeptJobs | None = None,
        snapshots: SnapshotFolder | None = None,
    ) -> None:
        self.budget = Budget(memory_bytes)
        """Of all tenants."""
        self._threads = threads
        self._check_finite = check_finite
        self._make_table = make_table
        self._kept = kept
        self._snapshots = snapshots
        self._jobs: dict[str, Job] = {}
        self.changed: dict[str, Job] = {}
        """Jobs whose groups may be others than when this was emptied."""

    def restore(self, budget_of: Callable[[str], Budget], present: Set[tuple[str, int]]) -> None:
        """Go on where the process before was killed. `budget_of` a job; `present`: jobs and groups that were there.

        Raises ServerError if a table's rule cannot be loaded.
        """
        for image in self._kept.jobs() if self._kept is not None else ():
            self._jobs[image.name] = Job.of(image, budget_of(image.name))
        for made, state in self._kept.begun_tables() if self._kept is not None else ():
            warm_up(made.spec.rule, made.spec.layout.dtype, made.spec.codec)
            job = self._jobs[made.job]
            table = job.tables[made.name] = self._make(job, made.job, made.name, made.spec)
            table.restore(state)
            table.rounds.held = bool(job.not_back)
        for name, job in [*self._jobs.items()]:
            for group in [group for group in job.present if (name, group) not in present]:
                self.leave(name, group, lost=True)
            self._note(name)
        self.keep(idle=True)

    def keep(self, idle: bool) -> None:
        """What has changed outlives the process from now on. `idle`: no worker has anything to do."""
        if self._kept is not None:
            self._kept.keep(idle)

    def _note(self, name: str) -> None:
        """A job has changed."""
        if name not in self._jobs:
            return
        job = self._jobs[name]
        self.changed[name] = job
        job.count()
        if self._kept is not None:
            self._kept.note_job(name, lambda: job.image(name))

    def enter(
        self,
        job: str,
        group: int,
        groups: int,
        budget: Budget | None = None,
        terms: Terms = Terms(),  # noqa: B008 (frozen)
        life: int = 0,
    ) -> None:
        """Group `group` of `groups` takes part in `job`, which uses memory of a tenant's `budget`. `life`: how often it
        was started again.

        Raises ServerError if the job has another number of groups, or it may not come; GroupTakenError if that group is
        there.
        """
        there = self._jobs.get(job)
        if terms.ticket is not None and terms.server == 0 and there is None:
            raise ServerError(f"job {job!r} has ended: there is nothing to join")
        known = there.places if there is not None and there.groups == groups else Places(groups)
        known.check(group, terms, there is not None and group in there.present)
        if there is not None and there.present and there.groups != groups:
            raise ServerError(
                f"job {job!r} has groups={there.groups}, and this group gives {groups}: "
                "start all groups with the same number, or give this job another name"
            )
        if there is None or there.groups != groups:
            self._forget(job)
            if len(self._jobs) >= MOST_JOBS and not self._evict(self.budget):
                raise ServerError(f"this server has {MOST_JOBS} jobs, and takes no more: use another one")
            there = self._jobs[job] = Job(groups, budget or self.budget)
        if group in there.present:
            raise GroupTakenError(
                f"group {group} of job {job!r} is there already: "
                "give each group its own index, or this job another name"
            )
        there.present.add(group)
        there.gone.discard(group)
        there.returns.pop(group, None)
        there.lives[group] = life
        there.places.enter(group, terms)
        self._note(job)

    def join(self, name: str, sizes: Sequence[int]) -> ToldToJoin:
        """Give groups of these sizes numbers in a job; without sizes only say what is known of it. Raises ServerError
        if they cannot join it."""
        job = self._jobs.get(name)
        called = name.rpartition("/")[2]
        if job is None or not (job.present or any(job.returns.values())):
            raise ServerError(f"no job {called!r} is here: see which one runs, and give its name with --set job=NAME")
        numbers, ticket = tuple[int, ...](), 0
        if sizes:
            if self._make_table is not Table:
                raise ServerError(f"job {called!r} has racks, which groups cannot join: start it with more groups")
            back = {group for group, returns in job.returns.items() if returns}
            try:
                numbers, ticket = job.places.give(sizes, job.present | back)
            except ServerError as error:
                raise ServerError(f"job {called!r} cannot be joined: {error}") from None
            self._note(name)
        return ToldToJoin(called, job.groups, job.places.terms, numbers, ticket, *job.done)

    def stop_awaiting(self, name: str, groups: Set[int] | None = None) -> None:
        """Groups that were given numbers do not come: these, or all of them."""
        job = self._jobs.get(name)
        if job is not None and job.places.awaited:
            job.places.awaited -= job.places.awaited if groups is None else groups
            self._note(name)
            self._forget_if_over(name, may_return=job.may_return)

    def ticket_of(self, name: str, group: int) -> int | None:
        """Whom the number of a group that has joined was given to."""
        job = self._jobs.get(name)
        return None if job is None else job.places.tickets.get(group)

    def note_done(self, name: str, epoch: float, step: int) -> None:
        """So much of a job is done."""
        if name in self._jobs:
            self._jobs[name].done = epoch, step
            self._note(name)

    def life_of(self, name: str, group: int) -> int:
        """The last life of a group that came."""
        return self._jobs[name].lives.get(group, 0) if name in self._jobs else 0

    def counted(self, name: str) -> tuple[int, int]:
        """The groups of a job that are there or expected, and their workers."""
        return self._jobs[name].counted if name in self._jobs else (0, 0)

    def awaits(self) -> list[str]:
        """The jobs in which groups have numbers that have not come yet."""
        return [name for name, job in self._jobs.items() if job.places.awaited]

    def be_back(self, name: str, group: int) -> list[Outcome]:
        """A group has sent again what was under way when the process before was killed. When all have, those that wait
        to take part may: none enters a round that the others were in the middle of."""
        job = self._jobs.get(name)
        if job is None or group not in job.not_back:
            return []
        job.not_back.discard(group)
        outcomes: list[Outcome] = []
        for table in job.tables.values() if not job.not_back else ():
            table.rounds.let_in()
            outcomes += table.registrations.release()
        return outcomes

    def may_come_back(self, job: str, group: int, epoch: int) -> bool:
        """Whether a group that was lost can go on in that life."""
        there = self._jobs.get(job)
        return there is not None and there.may_come_back(group, epoch)

    def come_back(self, job: str, group: int) -> None:
        """It `may_come_back`, and has entered: it takes part in its tables again."""
        for table in self._jobs[job].lost.pop(group)[1]:
            table.come_back(group)

    def leave(self, job: str, group: int, lost: bool = False, early: bool = False) -> list[Outcome]:
        """A group goes. The last one takes the tables with it, unless it, or another one, may come back.

        It may if it was `lost`, unless all groups have ended for good. In a rack it takes them in any case: the parents
        have them. `early`: before the end of its training.
        """
        there = self._jobs.get(job)
        if there is None or group not in there.present:
            return []
        there.present.discard(group)
        there.note_gone(group, finished=not (lost or early))
        returns = there.returns.get(group, False)
        there.note_lost(group, lost and self._make_table is Table)
        outcomes: list[Outcome] = []
        for table in there.tables.values():
            outcomes += table.leave(group, returns=returns, lost=group in there.lost)
        outcomes += self._free_unwanted(there)
        outcomes += self.be_back(job, group)
        self._note(job)
        there.may_return = lost and bool(there.tables) and self._make_table is Table
        self._forget_if_over(job, may_return=there.may_return)
        return outcomes

    def end(self, job: str, group: int, returns: bool, life: int = 0) -> list[Outcome]:
        """The processes of a life of a group have ended; it is started again (`returns`), or not. If it is there, it
        goes next. Of a life before the last one that came nothing follows.

        What it needs is kept for it, also when all other groups have left; not in a rack, as the parents have it.
        """
        there = self._jobs.get(job)
        known = there is not None and (0 <= group < there.groups or group in there.places.tickets)
        if there is None or not known or there.lives.get(group, 0) > life:
            return []
        there.places.awaited.discard(group)
        there.returns[group] = returns and self._make_table is Table
        there.lost.pop(group, None)
        self._note(job)
        if group in there.present:
            return []
        for table in there.tables.values():
            table.registrations.expect(group, there.returns[group])
        outcomes = self._free_unwanted(there)
        self._note(job)
        self._forget_if_over(job, may_return=True)
        return outcomes

    def begin_without_absent(self, job: str) -> list[Outcome]:
        """Let the groups of `job` that are there initialise tables that wait for one that never came."""
        outcomes: list[Outcome] = []
        there = self._jobs.get(job)
        if there is not None:
            there.waits_for_absent = False
            self._note(job)
            for table in there.tables.values():
                outcomes += table.registrations.begin_without_absent(there.present)
            outcomes += self._free_unwanted(there)
        return outcomes

    def register(
        self,
        origin: Origin,
        name: str,
        spec: TableSpec,
        initialise: bool = False,
        start: SnapshotStart | None = None,
    ) -> Sequence[Outcome]:
        """Join a table, and make it if it is new. `initialise` and `start` as in `Registrations.register`."""
        job = self._job(origin)
        there = job.tables.get(name)
        if there is not None and there.registrations.forsaken and (there.spec != spec or there.begins_anew(start)):
            self._free(job, name)
            there = None
        if there is None and name in job.dropped:
            if job.dropped[name] != digest(spec):
                raise LayoutError(
                    f"table {name!r} was registered with another layout, rule or clock, and dropped since"
                )
            return [Admitted(origin, initialise=False, dropped=True)]
        if there is None:
            return [self._begin(origin, name, spec, initialise, start)]
        there.spec.check_same(spec, name)
        return there.registrations.register(origin, initialise, start)

    def drop(self, origin: Origin, name: str) -> list[Outcome]:
        """A group is done with a table; it is freed when all groups are."""
        job, done = self._job(origin), Answer(origin, None)
        if name in job.dropped:
            return [done]
        outcomes = self.table(origin, name).leave(origin.group, drops=True)
        self._note(origin.job)
        return [*outcomes, *self._free_unwanted(job), done]

    def settle(self, job: str, group: int, request: int) -> None:
        """The group has all answers to its requests before that one."""
        there = self._jobs.get(job)
        for table in there.tables.values() if there else ():
            table.settle(group, request)

    def check_room(self, origin: Origin, nbytes: int, what: str) -> None:
        """Raise ServerError if the group's tenant may not use so much more memory."""
        budget = self._job(origin).budget
        self.evict_for(budget, nbytes)
        budget.check(nbytes, what)

    def evict_for(self, budget: Budget, nbytes: int) -> None:
        """Forget jobs whose groups were all lost, the oldest first, until there is room if that helps."""
        while (lacking := budget.lacking(nbytes)) and self._evict(lacking):
            pass

    def table(self, origin: Origin, name: str) -> Table:
        """The table of that name of the group's job. Raises ServerError if there is none."""
        table = self._job(origin).tables.get(name)
        if table is None:
            raise ServerError(f"job {origin.job!r} has no table {name!r} here: register it first")
        return table

    def tables(self) -> Iterator[tuple[str, Table]]:
        """All tables, each with its job."""
        return ((name, table) for name, job in self._jobs.items() for table in job.tables.values())

    def names(self, job: str) -> set[str]:
        """The tables that groups of a job have, or have dropped."""
        there = self._jobs.get(job)
        return {*there.tables, *there.dropped} if there is not None else set()

    def _begin(self, origin: Origin, name: str, spec: TableSpec, initialise: bool, start: SnapshotStart | None) -> Task:
        """A worker checks the layout, compiles the rule and looks for a snapshot: all may take long. Then the table is
        made."""

        def run() -> FoundTable | None:
            check_spec(spec)
            warm_up(spec.rule, spec.layout.dtype, spec.codec)
            return find_start(self._snapshots, origin.job, name, spec, start)

        def then(found: FoundTable | HybridPSError | None) -> Sequence[Outcome]:
            job = self._jobs.get(origin.job)
            if job is None or origin.group not in job.present:
                return []
            try:
                if isinstance(found, HybridPSError):
                    raise found
                reads: Sequence[Outcome] = ()
                if name not in job.tables and name not in job.dropped:  # another group may have been here meanwhile
                    table = job.tables[name] = self._make(job, origin.job, name, spec)
                    if found is not None:
                        from_there = start or SnapshotStart(found.number, secrets.randbits(62))
                        reads = table.begin_from(from_there, found.read, partial(self._give_up, job, table))
                return [*reads, *self.register(origin, name, spec, initialise, start)]
            except Exception as refused:  # also where the system has no memory
                return [Answer(origin, None, error=as_refusal(refused))]

        return Task(0, run, then)

    def _give_up(self, job: Job, table: Table, error: HybridPSError) -> list[Outcome]:
        """A table cannot start from its snapshot: the groups that wait for it are told."""
        waiting = [*table.registrations.joined.values()]
        return [*self._free(job, table.name), *(Answer(origin, None, error=error) for origin in waiting)]

    def _make(self, job: Job, of_job: str, name: str, spec: TableSpec) -> Table:
        if len(job.tables) >= MOST_TABLES:
            raise ServerError(f"job {of_job!r} has {MOST_TABLES} tables, and this server takes no more of it")
        nbytes = table_bytes(spec, job.groups, self._make_table.more_arrays)
        self.evict_for(job.budget, nbytes)
        job.budget.check(nbytes, f"table {name!r}")
        refuses, members = self._check_finite or not spec.rule.transparent, set(range(job.groups)) - job.gone
        keep = None if self._kept is None else (self._kept.make_table(of_job, name, spec), job.groups + MOST_JOINED)
        table = self._make_table(of_job, name, spec, members, self._threads, refuses, job.budget, keep)
        if (kept := self._kept) is not None:
            joined = table.registrations
            joined.on_change = lambda: kept.note_table(of_job, name, lambda: joined.image)
        if not job.waits_for_absent:
            table.registrations.begin_without_absent(job.present)
        job.budget.take(nbytes)
        return table

    def _free(self, job: Job, name: str) -> list[Outcome]:
        """Forget a table, and what was brought to its rounds."""
        table = job.tables.pop(name)
        if self._kept is not None:
            self._kept.forget_table(table.job, name)
        job.budget.take(-table_bytes(table.spec, job.groups, self._make_table.more_arrays))
        return table.free()

    def _free_unwanted(self, job: Job) -> list[Outcome]:
        outcomes: list[Outcome] = []
        for name in [name for name, table in job.tables.items() if table.registrations.unwanted]:
            job.dropped[name] = digest(job.tables[name].spec)
            outcomes += self._free(job, name)
            if len(job.dropped) > MOST_TABLES:
                del job.dropped[next(iter(job.dropped))]
        return outcomes

    def _job(self, origin: Origin) -> Job:
        job = self._jobs.get(origin.job)
        if job is None or origin.group not in job.present:
            raise ServerError(f"group {origin.group} of job {origin.job!r} is not there")
        return job

    def _evict(self, budget: Budget) -> bool:
        """Forget the oldest abandoned job whose end gives memory back to a budget; returns whether there was one."""
        for name, job in self._jobs.items():
            if not job.present and budget in job.budget.chain:
                self._forget(name)
                return True
        return False

    def _forget_if_over(self, name: str, may_return: bool) -> None:
        """Forget a job that no group is in, unless one is started again; or may return, as not all are known to end."""
        if self._jobs[name].is_over(may_return):
            self._forget(name)

    def _forget(self, name: str) -> None:
        job = self._jobs.pop(name, None)
        if job is not None:
            for table in [*job.tables]:
                self._free(job, table)
            if self._kept is not None:
                self._kept.forget_job(name)
