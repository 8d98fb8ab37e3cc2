"""When the groups of a job that train in step meet, and who takes part from then on."""

from __future__ import annotations

import itertools

from synchronous_jobs import SynchronousJobs, origin, values

from hybridps.memory import Layout
from hybridps.ps.clocks import BulkSynchronous
from hybridps.ps.model import Met, Origin, TableSpec
from hybridps.ps.rules import Sum
from hybridps.ps.server.admission import Budget
from hybridps.ps.server.tables.job import Job

SPEC = TableSpec(Layout.of("float32", {"w": (16,)}), Sum(), BulkSynchronous(), 64, 0, 1)

_numbers = itertools.count()


def job_of(groups: int) -> Job:
    job = Job("job", groups, Budget())
    job.present = {*range(groups)}
    return job


def come(job: Job, *groups: int) -> dict[int, Met]:
    """Let groups come to a meeting. Return the answers, by group."""
    outcomes = [outcome for group in groups for outcome in job.meet(Origin("job", group, 7, next(_numbers)))]
    return {outcome.origin.group: outcome for outcome in outcomes if isinstance(outcome, Met)}


def die(job: Job, group: int) -> dict[int, Met]:
    outcomes = job.leave(group, lost=True, early=False, may_return=True)
    job.returns[group] = True
    return {outcome.origin.group: outcome for outcome in outcomes if isinstance(outcome, Met)}


def restart(job: Job, group: int) -> None:
    job.present.add(group)
    job.gone.discard(group)
    job.returns.pop(group)
    job.lives[group] = job.lives.get(group, 0) + 1


def test_the_first_meeting_is_for_all_groups_and_has_no_newcomers() -> None:
    job = job_of(3)
    assert come(job, 2, 0) == {}
    met = come(job, 1)
    assert {group: (each.number, each.newcomers, each.giver) for group, each in met.items()} == dict.fromkeys(
        range(3), (1, (), None)
    )
    assert job.meetings.trains == {0, 1, 2}


def test_a_restarted_group_waits_for_the_others_and_takes_part_from_then_on() -> None:
    job = job_of(3)
    come(job, 0, 1, 2)
    die(job, 0)
    assert job.members == {1, 2}
    restart(job, 0)
    assert job.members == {1, 2}, "a table that is made now does not wait for it"
    assert come(job, 0) == {}
    assert come(job, 1) == {}
    met = come(job, 2)
    assert [(each.number, each.trains, each.newcomers, each.giver) for each in met.values()] == [
        (2, {0: 1, 1: 0, 2: 0}, (0,), 1)
    ] * 3
    assert job.members == {0, 1, 2}
    assert come(job, 1, 2) == {}, "from now on the others wait for it"
    assert come(job, 0).keys() == {0, 1, 2}


def test_a_group_that_dies_does_not_hold_up_a_meeting() -> None:
    job = job_of(3)
    come(job, 0, 1, 2)
    come(job, 0, 1)
    assert die(job, 2).keys() == {0, 1}


def test_nobody_waits_for_a_group_that_does_not_come_to_its_meeting_after_a_restart() -> None:
    job = job_of(2)
    come(job, 0, 1)
    die(job, 1)
    restart(job, 1)
    assert come(job, 0)[0].newcomers == ()
    assert come(job, 1) == {}


def test_without_a_group_that_has_trained_nobody_gives() -> None:
    job = job_of(2)
    come(job, 0, 1)
    die(job, 1)
    restart(job, 1)
    come(job, 1)
    met = die(job, 0)
    assert (met[1].giver, met[1].newcomers, met[1].finished) == (None, (1,), False)


def test_a_group_learns_that_the_others_have_finished() -> None:
    job = job_of(2)
    come(job, 0, 1)
    die(job, 1)
    restart(job, 1)
    come(job, 1)
    outcomes = job.leave(0, lost=False, early=False, may_return=False)
    assert [(each.giver, each.finished) for each in outcomes if isinstance(each, Met)] == [(None, True)]


def test_a_request_that_arrives_again_gets_the_same_answer() -> None:
    job = job_of(2)
    first = Origin("job", 0, 7, 1)
    assert job.meet(first) == []
    assert job.meet(first) == []
    met = come(job, 1)
    assert job.meet(first) == [met[0]]
    assert come(job, 1) == {}, "the next meeting waits for group 0"


def test_a_group_that_was_away_cannot_come_back_after_a_meeting_without_it() -> None:
    job = job_of(2)
    come(job, 0, 1)
    job.leave(1, lost=True, early=False, may_return=True)
    job.lost[1] = 7, []
    assert job.may_come_back(1, 7)
    come(job, 0)
    assert not job.may_come_back(1, 7)


def test_a_group_that_comes_back_in_time_still_trains() -> None:
    job = job_of(2)
    come(job, 0, 1)
    job.leave(1, lost=True, early=False, may_return=True)
    job.lost[1] = 7, []
    job.present.add(1)
    job.come_back(1)
    assert come(job, 0) == {}
    assert come(job, 1).keys() == {0, 1}


def test_other_servers_learn_who_trains() -> None:
    first, other = job_of(2), job_of(2)
    for met in come(first, 0, 1).values():
        other.learn_of_meeting(met.origin, met.number, met.trains)
    for job in (first, other):
        die(job, 1)
        restart(job, 1)
        assert job.members == {0}, "a table that is made now does not wait for it"
    for met in come(first, 1, 0).values():
        other.learn_of_meeting(met.origin, met.number, met.trains)
    assert first.members == other.members == {0, 1}


def test_another_server_ignores_an_earlier_meeting_and_a_life_that_has_ended() -> None:
    job = job_of(2)
    told = Origin("job", 0, 7, 1)
    job.learn_of_meeting(told, 1, {0: 0, 1: 0})
    job.learn_of_meeting(told, 2, {0: 0})
    job.learn_of_meeting(told, 1, {0: 0, 1: 0})
    assert job.members == {0}
    job.lives[1] = 2
    job.learn_of_meeting(told, 3, {0: 0, 1: 1})
    assert job.members == {0}


def test_a_group_that_another_server_has_lost_at_the_meeting_takes_part_when_it_is_back() -> None:
    job = job_of(2)
    job.leave(1, lost=True, early=False, may_return=True)
    job.lost[1] = 7, []
    job.learn_of_meeting(Origin("job", 0, 7, 1), 1, {0: 0, 1: 0})
    assert job.members == {0}
    job.present.add(1)
    job.gone.discard(1)
    job.come_back(1)
    assert job.members == {0, 1}


def test_at_a_meeting_nobody_is_awaited_that_was_there_when_a_server_was_killed() -> None:
    job = job_of(4)
    come(job, 0, 1, 2, 3)
    for group in (2, 3):
        die(job, group)
        restart(job, group)
    come(job, 2, 3)
    restored = Job.of(job.image, Budget())
    assert restored.not_back == {0, 1, 2, 3}
    come(restored, 3, 0)
    assert come(restored, 1).keys() == {0, 1, 3}
    assert restored.not_back == set(), "group 2 has died with the server"


def test_a_server_that_learns_of_a_meeting_lets_no_group_back_that_was_not_there() -> None:
    job = job_of(3)
    job.lost = {1: (7, []), 2: (8, [])}
    job.present -= {1, 2}
    job.learn_of_meeting(Origin("job", 0, 7, 1), 1, {0: 0, 2: 0})
    assert job.lost.keys() == {2}


def test_what_a_dead_group_has_not_dropped_is_freed_at_the_next_meeting() -> None:
    jobs = SynchronousJobs()
    for group in range(2):
        jobs.enter("job", group, 2)
    for group in range(2):
        jobs.meet(origin(group, 1), 0, {})
    for group in range(2):
        jobs.register(origin(group, 2), "hand-over.2", SPEC)
    jobs.initialise(origin(0, 3), "hand-over.2", 0, values(0))
    jobs.leave("job", 1, lost=True)
    jobs.end("job", 1, True)
    jobs.drop(origin(0, 4), "hand-over.2")
    assert jobs.names("job") == {"hand-over.2"}
    job = jobs.get("job")
    assert job is not None
    assert job.tables
    jobs.enter("job", 1, 2, life=1)
    jobs.meet(origin(0, 5), 0, {})
    assert not job.tables
    [told] = jobs.register(origin(1, 5, epoch=1), "hand-over.2", SPEC)
    assert told.dropped, "a group that comes late learns that there is nothing to wait for"
