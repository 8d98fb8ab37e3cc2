"""Groups that join a job which runs: their numbers, and what its servers know of them. Without transport."""

from __future__ import annotations

import numpy as np
import pytest
from synchronous_jobs import SynchronousJobs, admitted, origin, told, values

from hybridps.config import Settings
from hybridps.errors import ConfigError, ProtocolError, ServerError
from hybridps.memory import Layout
from hybridps.ps.clocks import BulkSynchronous, FreeRunning
from hybridps.ps.joining import MOST_JOINED, Terms, agreed_settings, terms_of
from hybridps.ps.model import GroupTakenError, TableSpec
from hybridps.ps.rules import Elastic, Mean
from hybridps.ps.server.kept import KeptMemory
from hybridps.ps.server.tables.images import KeptJobs

LAYOUT = Layout.of("float32", {"w": (16,)})
MEAN = TableSpec(LAYOUT, Mean(), BulkSynchronous(), 64, 0, 1)
ELASTIC = TableSpec(LAYOUT, Elastic(0.5), FreeRunning(), 64, 0, 1)
FIRST = Terms((1, 2), {"HYBRIDPS_ALGORITHM": "elastic"}, ("tcp://127.0.0.1:1",))


def started(spec=MEAN, **options):
    """A job of two groups, of one and two workers, which have table `w`."""
    jobs = SynchronousJobs(**options)
    for group in (0, 1):
        jobs.enter("job", group, 2, terms=FIRST)
        jobs.register(origin(group), "w", spec)
    jobs.initialise(origin(0), "w", 0, np.full(16, 8, np.float32))
    return jobs


def joins(jobs, given, number, **more):
    """The group that was given a number comes to the first server."""
    jobs.enter("job", number, 2, terms=Terms(given.terms.sizes[: number + 1], ticket=given.ticket), **more)


def test_groups_get_numbers_and_count_when_they_come():
    jobs = started()
    assert jobs.get("job").counted == (2, 3)
    given = jobs.join("job", (3, 1))
    assert (given.job, given.groups, given.numbers, given.terms.sizes) == ("job", 2, (2, 3), (1, 2, 3, 1))
    assert given.terms.settings == FIRST.settings
    assert given.terms.servers == FIRST.servers
    assert jobs.get("job").counted == (2, 3)
    joins(jobs, given, 3)
    assert jobs.get("job").counted == (3, 4)
    other = jobs.join("job", (1,))
    assert other.numbers == (4,), "a number that was given is kept"
    assert other.ticket != given.ticket
    jobs.leave("job", 3)
    assert jobs.get("job").counted == (2, 3)
    assert jobs.join("job", (3,)).numbers == (5,), "of another size than 3 had, and 2 is kept"
    assert jobs.join("job", (1,)).numbers == (3,), "its group has gone"


def test_a_group_that_joins_takes_part_in_the_rounds():
    jobs = started()
    given = jobs.join("job", (1,))
    joins(jobs, given, 2)
    assert admitted(jobs.register(origin(2), "w", MEAN)) == [(2, False)]
    assert told(jobs.contribute(origin(0, 1), "w", 0, values(1))) == []
    assert told(jobs.contribute(origin(1, 1), "w", 0, values(2))) == []
    assert told(jobs.contribute(origin(2, 1), "w", 0, values(6))) == [(0, 1, 3), (1, 1, 3), (2, 1, 3)]


def test_who_has_no_ticket_or_another_one_is_refused():
    jobs = started()
    given = jobs.join("job", (1,))
    for terms, kind, named in [
        (Terms(), ProtocolError, "none of 2 groups"),
        (Terms(ticket=given.ticket + 1), ServerError, "given to another group"),
    ]:
        with pytest.raises(kind, match=named):
            jobs.enter("job", 2, 2, terms=terms)
    with pytest.raises(ProtocolError, match="cannot join"):
        jobs.enter("job", 2 + MOST_JOINED, 2, terms=Terms(ticket=given.ticket))
    joins(jobs, given, 2)
    with pytest.raises(GroupTakenError):
        joins(jobs, given, 2)


def test_a_job_whose_groups_were_all_lost_is_not_joined():
    jobs = started()
    for group in (0, 1):
        jobs.leave("job", group, lost=True)
    assert jobs.names("job") == {"w"}, "they may come again"
    with pytest.raises(ServerError, match="no job 'job' is here"):
        jobs.join("job", (1,))


@pytest.mark.parametrize("name", ["nobody", "left"])
def test_a_job_that_is_not_there_is_named(name):
    jobs = started()
    jobs.enter("left", 0, 1, terms=Terms((1,)))
    jobs.leave("left", 0)
    with pytest.raises(ServerError, match=f"no job {name!r} is here"):
        jobs.join(name, (1,))
    with pytest.raises(ServerError, match="has ended: there is nothing to join"):
        jobs.enter(name, 2, 2, terms=Terms(ticket=1))


def test_places_are_bounded():
    jobs = started()
    jobs.join("job", (1,) * MOST_JOINED)
    with pytest.raises(ServerError, match=f"job 'job' cannot be joined: it has places for {MOST_JOINED} groups more"):
        jobs.join("job", (1,))


def test_a_job_ends_though_a_group_that_was_to_join_does_not_come():
    jobs = started()
    jobs.join("job", (1,))
    for group in (0, 1):
        jobs.leave("job", group)
    assert jobs.names("job") == {"w"}, "kept for the group that is on its way"
    assert jobs.awaits() == ["job"]
    jobs.stop_awaiting("job")
    assert jobs.names("job") == set()


def test_the_last_group_is_one_that_has_joined():
    jobs = started(ELASTIC)
    given = jobs.join("job", (1,))
    joins(jobs, given, 2)
    jobs.register(origin(2), "w", ELASTIC)
    jobs.leave("job", 0)
    assert jobs.get("job").counted == (3, 4), "it has finished"
    jobs.leave("job", 1, early=True)
    assert jobs.get("job").counted == (2, 2), "it has left before its end"
    assert told(jobs.contribute(origin(2, 1), "w", 0, values(16))) == [(2, 1, 4)]
    jobs.leave("job", 2)
    assert jobs.names("job") == set()


def test_the_end_of_a_group_that_has_joined():
    jobs = started()
    given = jobs.join("job", (1,))
    joins(jobs, given, 2, life=1)
    jobs.end("job", 2, returns=True, life=0)
    jobs.leave("job", 2, lost=True)
    assert jobs.get("job").counted == (2, 3), "that was the end of an earlier life"
    jobs.end("job", 2, returns=True, life=1)
    assert jobs.get("job").counted == (3, 4), "it is started again"
    jobs.end("job", 2, returns=False, life=1)
    assert jobs.get("job").counted == (2, 3)


def lives():
    """Lives of a server with the same memory."""
    descriptor = KeptMemory.create()
    while True:
        yield {"kept": KeptJobs(KeptMemory(descriptor))}


def test_a_later_life_knows_who_has_joined():
    life = lives()
    jobs = started(**next(life))
    given = jobs.join("job", (1, 4))
    joins(jobs, given, 2)
    jobs.register(origin(2), "w", MEAN)
    jobs.note_done("job", 2.5, 60)
    jobs.keep(idle=True)
    jobs = SynchronousJobs(**next(life))
    jobs.restore(lambda job: jobs.budget, {("job", group) for group in (0, 1, 2)})
    assert jobs.get("job").counted == (3, 4)
    joins(jobs, given, 3)
    assert jobs.get("job").counted == (4, 8)
    told_now = jobs.join("job", ())
    assert (told_now.epoch, told_now.step, told_now.terms.settings) == (2.5, 60, FIRST.settings)


def test_a_group_that_comes_after_a_restart_waits_until_the_others_are_back():
    """They may be in the middle of a step: what they had under way comes again."""
    life = lives()
    jobs = started(**next(life))
    jobs.contribute(origin(0, 1), "w", 0, values(1))
    jobs.keep(idle=True)
    jobs = SynchronousJobs(**next(life))
    jobs.restore(lambda job: jobs.budget, {("job", 0), ("job", 1)})
    joins(jobs, jobs.join("job", (1,)), 2)
    assert jobs.register(origin(2), "w", MEAN) == []
    assert jobs.be_back("job", 1) == []
    assert told(jobs.contribute(origin(0, 1), "w", 0, values(1))) == []
    assert admitted(jobs.be_back("job", 0)) == []
    outcomes = jobs.contribute(origin(1, 1), "w", 0, values(3))
    assert told(outcomes) == [(0, 1, 2), (1, 1, 2)]
    assert admitted(outcomes) == [(2, False)]


@pytest.mark.parametrize("goes", ["back", "lost"])
def test_it_does_not_wait_longer(goes):
    life = lives()
    started(**next(life)).keep(idle=True)
    jobs = SynchronousJobs(**next(life))
    jobs.restore(lambda job: jobs.budget, {("job", 0), ("job", 1)})
    joins(jobs, jobs.join("job", (1,)), 2)
    assert jobs.register(origin(2), "w", MEAN) == []
    jobs.be_back("job", 0)
    outcomes = jobs.be_back("job", 1) if goes == "back" else jobs.leave("job", 1, lost=True)
    assert admitted(outcomes) == [(2, False)]


def test_settings_of_a_job_are_taken_over_and_others_are_named():
    job = terms_of(Settings(algorithm="elastic", alpha=0.3, tau=5, quiet=True, credentials="secret"), ())
    assert agreed_settings(Settings(tau=5, quiet=False), "job", job) == {
        "algorithm": "elastic",
        "alpha": "0.3",
        "tau": "5",
    }
    with pytest.raises(ConfigError, match="HYBRIDPS_ALPHA is 0.3 in job 'job', and 0.4 here: leave it out"):
        agreed_settings(Settings(alpha=0.4), "job", job)
    with pytest.raises(ConfigError, match="HYBRIDPS_WIRE is not set in job 'job', and float16 here"):
        agreed_settings(Settings(wire="float16"), "job", job)
