"""The server without transport: jobs, their tables, and the answers to their groups.

The loop makes the calls, one at a time. Groups of different jobs never meet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from functools import partial
from typing import TYPE_CHECKING

from hybridps.errors import ServerError
from hybridps.ps.joining import Terms, ToldToJoin
from hybridps.ps.model import Admitted, Answer, GroupTakenError, Origin, Outcome, SnapshotStart, TableSpec
from hybridps.ps.server.admission import Budget
from hybridps.ps.server.tables.images import KeptJobs
from hybridps.ps.server.tables.job import Job
from hybridps.ps.server.tables.making import TableMaker, check_same_spec
from hybridps.ps.server.tables.places import Places
from hybridps.ps.server.tables.table import Table

if TYPE_CHECKING:
    from hybridps.ps.server.snapshots.folder import SnapshotFolder

MOST_JOBS = 4096


class Jobs:
    """What one server owns of every job, distributed over `threads`.

    `memory_bytes` bounds the memory of all jobs together. `check_finite`: sums refuse NaN and Inf too; other rules
    always do. `make_table`: `Table`, or that of a rack server. `kept`: what outlives the process.
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
        """The budget of all tenants together."""
        self._kept = kept
        self._maker = TableMaker(make_table, threads, check_finite, kept, snapshots, self.evict_for)
        self._jobs: dict[str, Job] = {}
        self.changed: dict[str, Job] = {}
        """Jobs whose groups may have changed since this was emptied."""
        self.told_ends = False
        """Whether the launcher of the jobs tells of each group that ends. A job stays for groups that come late."""
        self._ended_before: dict[str, dict[int, tuple[bool, int]]] = {}
        """The groups that have ended before any group of their job came: see `end`."""

    def restore(self, budget_of: Callable[[str], Budget], present: Set[tuple[str, int]]) -> None:
        """Continue where the previous process was killed. `present`: the groups with clients, by job.

        Raises ServerError if a table's rule cannot be loaded.
        """
        for image in self._kept.jobs() if self._kept is not None else ():
            self._jobs[image.name] = Job.of(image, budget_of(image.name))
        for made, state in self._kept.begun_tables() if self._kept is not None else ():
            self._maker.restore(self._jobs[made.job], made.name, made.spec, state)
        for name, job in [*self._jobs.items()]:
            for group in [group for group in job.present if (name, group) not in present]:
                self.leave(name, group, lost=True)
            self._note(job)
        self.keep(idle=True)

    def keep(self, idle: bool) -> None:
        """Make all changes outlive the process. `idle`: no worker thread has work."""
        if self._kept is not None:
            self._kept.keep(idle)

    def get(self, name: str) -> Job | None:
        """Return the job of that name, if it is known."""
        return self._jobs.get(name)

    def _note(self, job: Job) -> None:
        """Note that a job has changed."""
        if self._jobs.get(job.name) is job:
            self.changed[job.name] = job
            job.count()
            if self._kept is not None:
                self._kept.note_job(job.name, lambda: job.image)

    def enter(
        self,
        job: str,
        group: int,
        groups: int,
        budget: Budget | None = None,
        terms: Terms = Terms(),  # noqa: B008 (frozen)
        life: int = 0,
    ) -> None:
        """Let group `group` of `groups` take part in `job`, which uses a tenant's `budget`, in its life number `life`.

        Raises ServerError if the job has another number of groups, or if it may not come; GroupTakenError if that group
        is there.
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
            there = self._jobs[job] = Job(job, groups, budget or self.budget)
        if group in there.present:
            what = f"group {group} of job {job!r} is there already"
            raise GroupTakenError(f"{what}: give each group its own index, or this job another name")
        there.enter(group, terms, life)
        self._note(there)
        for ended, (returns, its_life) in self._ended_before.pop(job, {}).items():
            if ended != group:
                self.end(job, ended, returns, its_life)

    def join(self, name: str, sizes: Sequence[int]) -> ToldToJoin:
        """Give groups of these sizes numbers in a job, or only describe it. Raises ServerError if they cannot join."""
        job = self._jobs.get(name)
        called = name.rpartition("/")[2]
        if job is None or not (job.present or job.returning):
            raise ServerError(f"no job {called!r} is here: see which one runs, and give its name with --set job=NAME")
        if sizes and not self._maker.is_root:
            raise ServerError(f"job {called!r} has racks, which groups cannot join: start it with more groups")
        try:
            numbers, ticket = job.give_numbers(sizes)
        except ServerError as error:
            raise ServerError(f"job {called!r} cannot be joined: {error}") from None
        self._note(job)
        return ToldToJoin(called, job.groups, job.places.terms, numbers, ticket, *job.done)

    def stop_awaiting(self, name: str) -> None:
        """Stop waiting for the groups that were given numbers."""
        job = self._jobs.get(name)
        if job is not None and job.places.awaited:
            job.places.awaited.clear()
            self._note(job)
            self._forget_if_over(job, may_return=job.may_return)

    def note_done(self, name: str, epoch: float, step: int) -> None:
        """Note the progress of a job."""
        job = self._jobs.get(name)
        if job is not None:
            job.done = epoch, step
            self._note(job)

    def awaits(self) -> list[str]:
        """Return the jobs with numbers whose groups have not come yet."""
        return [name for name, job in self._jobs.items() if job.places.awaited]

    def be_back(self, name: str, group: int) -> list[Outcome]:
        """Note that a group is back, as `Job.be_back`."""
        job = self._jobs.get(name)
        return [] if job is None else job.be_back(group)

    def meet(self, origin: Origin, number: int, trains: Mapping[int, int]) -> list[Outcome]:
        """Let a group come to a meeting of its job, or tell this server of a meeting that was held at the first one."""
        job = self._job(origin)
        outcomes = job.learn_of_meeting(origin, number, trains) if number else job.meet(origin)
        outcomes += self._maker.free_unwanted(job)
        self._note(job)  # after the tables: if they are kept, and this is not, newcomers are let in again
        return outcomes

    def leave(self, job: str, group: int, lost: bool = False, early: bool = False) -> list[Outcome]:
        """Let a group go. The tables go with the last group, unless that one or another one may come back.

        It may if it was `lost`, unless all groups have ended for good. In a rack the tables go in any case, because the
        parents have them. `early`: before the end of its training.
        """
        there = self._jobs.get(job)
        if there is None or group not in there.present:
            return []
        is_kept = lost and self._maker.is_root
        outcomes = there.leave(group, lost, early, may_return=is_kept)
        outcomes += self._maker.free_unwanted(there)
        outcomes += there.be_back(group)
        self._note(there)
        there.may_return = is_kept and bool(there.tables)
        self._forget_if_over(there, may_return=there.may_return)
        return outcomes

    def end(self, job: str, group: int, returns: bool, life: int = 0) -> list[Outcome]:
        """Note that the processes of a life of a group have ended; `returns`: it is started again, and what it needs is
        kept for it, but not in a rack, because the parents have it.

        If the group is there, it goes next. If it never came, nobody waits for it any more. An end of an earlier life
        than the latest is ignored.
        """
        there = self._jobs.get(job)
        if there is None and self.told_ends and len(self._ended_before) < MOST_JOBS:
            self._ended_before.setdefault(job, {})[group] = returns, life
        if there is None or not there.has_number(group) or there.lives.get(group, 0) > life:
            return []
        there.places.awaited.discard(group)
        there.returns[group] = returns and self._maker.is_root
        there.lost.pop(group, None)
        self._note(there)
        if group in there.present:
            return []
        outcomes = [*there.end(group), *self._maker.free_unwanted(there)]
        self._note(there)
        self._forget_if_over(there, may_return=True)
        return outcomes

    def begin_without_absent(self, job: str) -> list[Outcome]:
        """Let the groups of `job` that are there initialise tables that wait for one that never came."""
        there = self._jobs.get(job)
        if there is None:
            return []
        there.waits_for_absent = False
        self._note(there)
        joined = [table.registrations for table in there.tables.values()]
        begun = [outcome for each in joined for outcome in each.begin_without_absent(there.present)]
        return [*begun, *there.meet(), *self._maker.free_unwanted(there)]

    def register(
        self,
        origin: Origin,
        name: str,
        spec: TableSpec,
        initialise: bool = False,
        start: SnapshotStart | None = None,
    ) -> Sequence[Outcome]:
        """Join a table, and make it if it is new. `initialise`, `start`: see `Registrations.register`."""
        job = self._job(origin)
        there = job.tables.get(name)
        if there is not None and there.registrations.forsaken and (there.spec != spec or there.begins_anew(start)):
            self._maker.free(job, name)
            there = None
        if there is None and name in job.dropped:
            check_same_spec(job, name, spec)
            return [Admitted(origin, initialise=False, dropped=True)]
        if there is None:
            register = partial(self.register, origin, name, spec, initialise, start)
            return [self._maker.begin(origin, name, spec, start, partial(self._job_of, origin), register)]
        there.spec.check_same(spec, name)
        return there.registrations.register(origin, initialise, start)

    def drop(self, origin: Origin, name: str) -> list[Outcome]:
        """Let a group drop a table. The table is freed when all groups have dropped it."""
        job, done = self._job(origin), Answer(origin, None)
        if name in job.dropped:
            return [done]
        outcomes = self.table(origin, name).drop(origin.group)
        self._note(job)
        return [*outcomes, *self._maker.free_unwanted(job), done]

    def settle(self, job: str, group: int, request: int) -> None:
        """Note that the group has all answers to its requests before `request`."""
        there = self._jobs.get(job)
        for table in there.tables.values() if there else ():
            table.settle(group, request)

    def check_room(self, origin: Origin, nbytes: int, what: str) -> None:
        """Raise ServerError if the group's tenant may not use `nbytes` more memory."""
        budget = self._job(origin).budget
        self.evict_for(budget, nbytes)
        budget.check(nbytes, what)

    def evict_for(self, budget: Budget, nbytes: int) -> None:
        """Forget jobs whose groups were all lost, the oldest first, until there is room if that helps."""
        while (lacking := budget.lacking(nbytes)) and self._evict(lacking):
            pass

    def table(self, origin: Origin, name: str) -> Table:
        """Return the table of that name of the group's job. Raises ServerError if there is none."""
        table = self._job(origin).tables.get(name)
        if table is None:
            raise ServerError(f"job {origin.job!r} has no table {name!r} here: register it first")
        return table

    def tables(self) -> Iterator[tuple[str, Table]]:
        """Return all tables, each with its job."""
        return ((name, table) for name, job in self._jobs.items() for table in job.tables.values())

    def names(self, job: str) -> set[str]:
        """Return the names of the tables that groups of a job have, or have dropped."""
        return {*there.tables, *there.dropped} if (there := self._jobs.get(job)) is not None else set()

    def _job(self, origin: Origin) -> Job:
        """Return the job of a group that is there. Raises ServerError if it is not."""
        job = self._job_of(origin)
        if job is None:
            raise ServerError(f"group {origin.group} of job {origin.job!r} is not there")
        return job

    def _job_of(self, origin: Origin) -> Job | None:
        job = self._jobs.get(origin.job)
        return job if job is not None and origin.group in job.present else None

    def _evict(self, budget: Budget) -> bool:
        """Forget the oldest abandoned job whose end frees memory of a budget. Returns whether there was one."""
        for name, job in self._jobs.items():
            if not job.present and budget in job.budget.chain:
                self._forget(name)
                return True
        return False

    def _forget_if_over(self, job: Job, may_return: bool) -> None:
        """Forget a job without groups, unless one is started again or, with `may_return`, may come back."""
        if job.is_over(may_return, self.told_ends):
            self._forget(job.name)

    def _forget(self, name: str) -> None:
        job = self._jobs.pop(name, None)
        if job is not None:
            for table in [*job.tables]:
                self._maker.free(job, table)
            if self._kept is not None:
                self._kept.forget_job(name)
