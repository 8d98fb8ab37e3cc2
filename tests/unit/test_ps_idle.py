"""Groups that live and hold up others: a rank of theirs is stopped, or they ask for nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from in_thread import in_thread

from hybridps.config import Settings
from hybridps.errors import ServerError
from hybridps.memory import Layout
from hybridps.ps import wire
from hybridps.ps.client import Client
from hybridps.ps.rules import Sum
from hybridps.ps.server import Server
from hybridps.ps.server.admission import Account, Budget
from hybridps.ps.server.members import Member, Members
from hybridps.ps.server.tables.jobs import Jobs

pytestmark = pytest.mark.timeout(60)

LAYOUT = Layout.of("float32", {"w": (16,)})
SETTINGS = Settings(lost_seconds=20.0, deadline_seconds=600.0, heartbeat_seconds=0.05)


def never() -> float:
    return 0.0


@contextmanager
def three(server: Server, silent: Callable[[], float] = never) -> Iterator[list[Client]]:
    """The clients of three groups, all at one table. `silent`: for how long a rank of group 1 is."""
    clients = [Client([server.address], job="job", group=group, groups=3, settings=SETTINGS) for group in range(3)]
    for group, client in enumerate(clients):
        client.session.heed(silent if group == 1 else never)
        client.register("w", LAYOUT, np.zeros(16, np.float32), Sum())
    yield clients
    for client in clients:
        client.close(lost=True)


def sum_without_group_1(clients: list[Client]) -> float:
    """What groups 0 and 2 get, while group 1 does nothing."""
    answers = [np.ones(16, np.float32) for _ in range(2)]
    waiting = [
        client.exchange("w", answer, answer, 0, 16) for client, answer in zip(clients[::2], answers, strict=True)
    ]
    for each in waiting:
        each.wait()
    assert (answers[0] == answers[1]).all()
    return float(answers[0][0])


def test_a_group_with_a_silent_rank_is_lost_though_its_leader_gives_signs_of_life() -> None:
    began = time.monotonic()
    with in_thread(Server(lost_seconds=0.5)) as server, three(server, lambda: time.monotonic() - began) as clients:
        assert sum_without_group_1(clients) == 2.0
        with pytest.raises(ServerError, match=r"gave no sign of life for 0\.5 s, was treated as lost"):
            clients[1].exchange("w", *np.ones((2, 16), np.float32), 0, 16).wait()


def test_a_rank_that_is_silent_for_a_moment_is_waited_for() -> None:
    began = time.monotonic()

    def silent() -> float:
        return max(0.0, min(0.4, time.monotonic() - began))

    with in_thread(Server(lost_seconds=1.0)) as server, three(server, silent) as clients:
        values = np.ones((3, 16), np.float32)
        waiting = [clients[group].exchange("w", values[group], values[group], 0, 16) for group in (0, 2)]
        time.sleep(2.0)
        waiting.append(clients[1].exchange("w", values[1], values[1], 0, 16))
        for each in waiting:
            each.wait()
        assert (values == 3.0).all()


def test_a_group_that_asks_for_nothing_is_lost_and_not_those_that_wait_for_it() -> None:
    with in_thread(Server(lost_seconds=20.0, patience_seconds=0.5)) as server, three(server) as clients:
        assert sum_without_group_1(clients) == 2.0
        assert sum_without_group_1(clients) == 2.0
        with pytest.raises(
            ServerError, match=r"asked for nothing for 0\.5 s, in which others waited, was treated as lost"
        ):
            clients[1].exchange("w", *np.ones((2, 16), np.float32), 0, 16).wait()


def members_of(*jobs: str) -> Members:
    """A client of each of these jobs, by their session."""
    members = Members(100.0, Jobs(), patience_seconds=10.0)
    for session, job in enumerate(jobs):
        group = jobs[:session].count(job)
        members.enter(Member(b"%d" % session, session, job, group, 0.0, Account(job, Budget())), jobs.count(job))
    return members


def beat(members: Members, now: float, **waiting: float | None) -> list[int]:
    """Heartbeats of all clients; the sessions of those that are lost then. `waiting`: each by s and its session."""
    for name, seconds in waiting.items():
        members.beat(wire.Heartbeat(int(name[1:]), 0, 0.0, seconds), now)
    return [member.session for member in members.silent(now, True, 1)]


def test_only_who_is_idle_as_long_as_another_one_of_its_job_waits_is_lost() -> None:
    members = members_of("a", "a", "a", "b")
    assert beat(members, 1.0, s0=0.0, s1=0.0, s2=None, s3=0.0) == []
    assert beat(members, 12.0, s0=0.0, s1=0.0, s2=None, s3=0.0) == [], "nobody waits"
    assert beat(members, 13.0, s0=9.0, s1=0.0, s2=None, s3=0.0) == [], "nobody waits for long"
    assert beat(members, 15.0, s0=11.0, s1=0.0, s2=None, s3=0.0) == [1]


def test_who_had_answers_meanwhile_is_not_idle() -> None:
    members = members_of("a", "a")
    beat(members, 1.0, s0=0.0, s1=0.0)
    members.beat(wire.Heartbeat(1, 5, 0.0, 0.0), 9.0)
    assert beat(members, 15.0, s0=11.0) == []
    assert beat(members, 19.5, s0=15.0) == [1]


def test_who_waits_for_a_meeting_with_those_that_train_makes_nobody_idle() -> None:
    members = members_of("a", "a", "a")
    job = members._jobs.get("a")
    assert job is not None
    job.meetings.held, job.meetings.trains = 1, {0, 1}
    beat(members, 1.0, s0=0.0, s1=0.0, s2=0.0)
    assert beat(members, 15.0, s0=0.0, s1=0.0, s2=11.0) == []
    assert beat(members, 16.0, s0=0.0, s1=12.0, s2=12.0) == [0]
