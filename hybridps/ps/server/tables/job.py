"""What a server knows about one job: its groups and its tables. Only the loop uses it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

from hybridps.ps.joining import Terms
from hybridps.ps.model import Answer, Origin, Outcome
from hybridps.ps.server.admission import Budget
from hybridps.ps.server.tables.images import JobImage
from hybridps.ps.server.tables.meetings import Meetings
from hybridps.ps.server.tables.places import Places
from hybridps.ps.server.tables.table import Table


@dataclass
class Job:
    """A job that was started with `groups` groups: those that are there, those that have gone, and its tables."""

    name: str
    groups: int
    budget: Budget
    present: set[int] = field(default_factory=set)
    gone: set[int] = field(default_factory=set)
    finished: set[int] = field(default_factory=set)
    """The groups, of those that the job was started with, that have gone at the end of their training. They still
    count, so that groups that continue to train divide by the same number."""
    returns: dict[int, bool] = field(default_factory=dict)
    """For groups whose processes are known to have ended, whether they are started again."""
    tables: dict[str, Table] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
    """Tables that all groups have dropped, with digests of their specs."""
    lost: dict[int, tuple[int, list[Table]]] = field(default_factory=dict)
    """The groups that were lost and may come back: the epoch and the tables of each."""
    waits_for_absent: bool = True
    """Whether a table waits for a group that has not come yet to initialise it."""
    may_return: bool = False
    """Whether the group that went last was lost, and its tables are kept."""
    not_back: set[int] = field(default_factory=set)
    """Groups that were there when an earlier process was killed, and have not sent again what was under way."""
    lives: dict[int, int] = field(default_factory=dict)
    """The latest life of each group."""
    done: tuple[float, int] = (0.0, 0)
    """The epochs and steps that the job has done, according to its launcher."""
    counted: tuple[int, int] = (0, 0)
    """The number of groups that are there, expected or finished, and of their workers, as of the last change."""

    def __post_init__(self) -> None:
        self.places = Places(self.groups)
        """The numbers of its groups."""
        self.meetings = Meetings()

    @property
    def behind(self) -> int:
        """1 + the number of the group furthest behind the others in any table; 0 if none is."""
        lags = (table.rounds.lag for table in self.tables.values())
        group, elements = max(lags, key=itemgetter(1), default=(None, 0))
        return 1 + group if group is not None and elements else 0

    @property
    def returning(self) -> set[int]:
        """The groups whose processes have ended and are started again."""
        return {group for group, returns in self.returns.items() if returns}

    @property
    def joined(self) -> set[int]:
        """The groups that have joined the job and are there or started again."""
        return {number for number in self.present | self.returning if number >= self.groups}

    def enter(self, group: int, terms: Terms, life: int) -> None:
        """Let a group in, in this life."""
        self.present.add(group)
        self.gone.discard(group)
        self.returns.pop(group, None)
        self.lives[group] = life
        self.places.enter(group, terms)

    def give_numbers(self, sizes: Sequence[int]) -> tuple[tuple[int, ...], int]:
        """Return numbers and a ticket, as `Places.give`; none without sizes."""
        return self.places.give(sizes, self.present | self.returning) if sizes else ((), 0)

    def count(self) -> tuple[int, int]:
        """Count the groups, and their workers."""
        first = {group for group in range(self.groups) if group not in self.gone or self.returns.get(group)}
        if not self.waits_for_absent:
            first &= self.present | self.returns.keys()
        first |= self.finished
        groups = first | self.joined
        self.counted = len(groups), sum(map(self.places.size_of, groups))
        return self.counted

    @property
    def members(self) -> set[int]:
        """The groups for which a new table is made."""
        there = {*range(self.groups)} - self.gone
        return there & self.meetings.trains if self.meetings.held else there

    @property
    def unseen(self) -> set[int]:
        """The groups of the start that have not come yet, and are not known to have ended."""
        return {*range(self.groups)} - self.present - self.gone - self.returns.keys()

    def is_over(self, may_return: bool, awaits_unseen: bool = False) -> bool:
        """Return whether no group is there or comes back. `may_return`: they do, unless all are known to have ended.

        `awaits_unseen`: groups that have not come yet will, unless they are known to have ended.
        """
        have_ended = self.returns.keys() >= {*range(self.groups)}
        somebody = self.present or self.places.awaited or self.returning or (awaits_unseen and self.unseen)
        return not somebody and (have_ended or not may_return)

    def leave(self, group: int, lost: bool, early: bool, may_return: bool) -> list[Outcome]:
        """Let a group go: it is `lost`, or goes `early` or at the end. `may_return`: a lost group may come back."""
        self.present.discard(group)
        self.gone.add(group)
        self.finished.discard(group)
        self.meetings.leave(group)
        ends = not (lost or early)
        if ends and group < self.groups:
            self.finished.add(group)
        self.lost.pop(group, None)
        had = [table for table in self.tables.values() if table.registrations.is_admitted(group)]
        if may_return and had:
            self.lost[group] = had[0].registrations.joined[group].epoch, had
        returns, stays = self.returns.get(group, False), group in self.lost
        left = [table.leave(group, returns=returns, lost=stays, ends=ends) for table in self.tables.values()]
        return [*(outcome for outcomes in left for outcome in outcomes), *self.meet()]

    def meet(self, origin: Origin | None = None) -> list[Outcome]:
        """Let a group come to a meeting, if one is given. If all are there, it is held, and newcomers take part."""
        known = self.meetings.come(origin) if origin is not None else []
        first = {*range(self.groups)} - self.gone | self.present | self.returning
        if not self.waits_for_absent:
            first -= self.unseen
        if known or self.meetings.missing(first):
            return [*known]
        self.lost.clear()  # groups that were away did not meet the others
        answers = self.meetings.hold(lambda group: self.lives.get(group, 0), bool(self.finished))
        return [*self._go_on_with(answers[0].newcomers if answers[0].giver is not None else ()), *answers]

    def learn_of_meeting(self, origin: Origin, number: int, trains: Mapping[int, int]) -> list[Outcome]:
        """Learn what groups train after a meeting at the first server, with the life of each. Returns an answer.

        The group that tells this first is between two steps, and so are all others.
        """
        outcomes: list[Outcome] = []
        if number > self.meetings.held:
            same_life = {group for group, life in trains.items() if self.lives.get(group, 0) == life}
            self.lost = {group: known for group, known in self.lost.items() if group in same_life}
            newcomers = self.meetings.learn(number, same_life & self.present, same_life - self.present)
            outcomes += self._go_on_with(newcomers)
        return [*outcomes, Answer(origin, None)]

    def _go_on_with(self, newcomers: Iterable[int]) -> list[Outcome]:
        """Let newcomers take part in all tables, while no group has anything under way."""
        outcomes = [outcome for group in [*self.not_back] for outcome in self.be_back(group)]
        for table in self.tables.values():
            table.registrations.stop_expecting_if_dropped()
            for group in newcomers:
                table.registrations.take_in(group)
        return outcomes

    def trains(self, group: int) -> bool:
        """Return whether a group trains with the others, and does not wait until they meet."""
        return not self.meetings.held or group in self.meetings.trains

    def has_number(self, group: int) -> bool:
        """Return whether a group of this number belongs to the job."""
        return 0 <= group < self.groups or group in self.places.tickets

    def end(self, group: int) -> list[Outcome]:
        """Note in the tables that the processes of a group that is not there have ended, as `returns` says."""
        if group in self.gone or group >= self.groups or self.returns[group]:
            for table in self.tables.values():
                table.registrations.expect(group, self.returns[group])
            return []
        self.gone.add(group)  # it never came, and the others do not wait for it any more
        return [*(outcome for table in self.tables.values() for outcome in table.leave(group)), *self.meet()]

    def be_back(self, group: int) -> list[Outcome]:
        """Note that a group has sent again what was under way when the previous process was killed. When all have,
        waiting groups may take part: none enters a round that others were in the middle of.
        """
        if group not in self.not_back:
            return []
        self.not_back.discard(group)
        outcomes: list[Outcome] = []
        for table in self.tables.values() if not self.not_back else ():
            table.rounds.let_in()
            outcomes += table.registrations.release()
        return outcomes

    def may_come_back(self, group: int, epoch: int) -> bool:
        """Return whether a lost group can continue in that life: nobody has its place, and its tables are unchanged.

        Values of free-running tables can be used later; other tables must not have been computed without it.
        """
        if group in self.present or group not in self.lost or self.lost[group][0] != epoch:
            return False
        return all(self.tables.get(each.name) is each and each.may_come_back(group) for each in self.lost[group][1])

    def come_back(self, group: int) -> None:
        """Let a group that `may_come_back`, and has entered, take part in its tables again."""
        self.meetings.come_back(group)
        for table in self.lost.pop(group)[1]:
            table.come_back(group)

    @property
    def image(self) -> JobImage:
        """What outlives the process about the job."""
        places = self.places
        groups = self.groups, self.present, self.gone, self.finished, self.returns
        waits = self.dropped, self.waits_for_absent
        met = self.meetings.held, self.meetings.trains, self.meetings.last, self.meetings.answered
        return JobImage(self.name, *groups, *waits, places.terms, places.tickets, self.lives, self.done, met)

    @staticmethod
    def of(image: JobImage, budget: Budget) -> Job:
        """Make the job that was kept. Its groups are expected again."""
        groups = image.present, image.gone, image.finished, image.returns
        job = Job(image.name, image.groups, budget, *groups, dropped=image.dropped)
        job.waits_for_absent, job.not_back = image.waits_for_absent, {*image.present}
        job.lives, job.done, job.meetings = image.lives, image.done, Meetings(*image.met)
        job.places.terms, job.places.tickets = image.terms, image.tickets
        job.places.awaited = {*image.tickets} - image.present - image.gone
        return job
