"""Who is there: what ranks agree on as groups join and leave. Ranks are threads; the server is a real one."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import pytest
from algorithm_groups import LAYOUT, Groups, run
from in_thread import in_thread

from hybridps import leaving
from hybridps.algorithms import Algorithm
from hybridps.config import Settings
from hybridps.events import EventLog
from hybridps.memory import Arena
from hybridps.mpi_groups import Headcount, ServersView, ThreadGroup
from hybridps.ps.server import Server
from hybridps.resuming import Notice, notice
from hybridps.step import JobContext, Schedule
from hybridps.tensor_collectives import Levels, Tensor

pytestmark = pytest.mark.timeout(60)

Watch = Callable[[str | Callable[[], str]], AbstractContextManager[None]]

LATE = 6
"""The step in which the second rank's program reads the number of workers first."""


@pytest.fixture
def told() -> Iterator[Notice]:
    """Whether this process is to leave, as no process is afterwards."""
    yield notice
    notice.given = notice.agreed = False


def schedule_of(group: ThreadGroup, headcount: Headcount, watch: Watch = lambda what: nullcontext()) -> Schedule:
    """That of a rank, whose leader's servers say that there are 3 groups and 4 workers."""
    context = JobContext(
        Settings(quiet=True),
        group.rank,
        2,
        EventLog(None, group.rank),
        watch,
        headcount=headcount,
        servers_view=ServersView(counted=lambda: (3, 4) if group.rank == 0 else None),
    )
    return Schedule(Levels(group, [0] * group.size, 20.0), context)


def test_sums_stand_for_more_workers_when_all_programs_have_read_that() -> None:
    def body(group: ThreadGroup) -> list[tuple[int, int, int]]:
        headcount, seen = Headcount(2, 2), []
        schedule = schedule_of(group, headcount)
        for step in range(3 * LATE):
            schedule.roll.begin(0, step)
            if step >= LATE * group.rank:
                headcount.read_workers()
            seen.append((headcount.workers, schedule.roll.groups, schedule.roll.divisor))
        schedule.close()
        return seen

    first, second = ThreadGroup.run(2, body)
    assert first == second
    assert first[0] == (2, 2, 2)
    assert first[1 : LATE + 1] == [(4, 3, 2)] * LATE
    assert first[-1] == (4, 3, 4)


def test_what_waits_for_a_look_is_said_with_the_step() -> None:
    def body(group: ThreadGroup) -> None:
        schedule = schedule_of(group, Headcount(2, 2), watch)
        schedule.roll.begin(0, 7)
        schedule.close()

    watched: list[str] = []

    def watch(what: str | Callable[[], str]) -> AbstractContextManager[None]:
        watched.append(what if isinstance(what, str) else what())
        return nullcontext()

    ThreadGroup.run(1, body)
    assert "step 7: a look at who is there, which another worker has not come to" in watched


def test_all_ranks_leave_after_the_same_step(told: Notice) -> None:
    def body(group: ThreadGroup) -> int:
        schedule = schedule_of(group, Headcount(3, 4))
        step = 0
        while not schedule.roll.hands_in:
            schedule.roll.begin(0, step)
            step += 1
            if group.rank == 1 and step == 3:
                assert not leaving()
                told.given = True
            time.sleep(0.001)
        schedule.roll.begin(0, step)
        assert leaving()
        schedule.close()
        return step

    first, second = ThreadGroup.run(2, body)
    assert first == second


def test_a_group_leaves_when_both_of_its_models_were_averaged_again(told: Notice) -> None:
    """And not later because of a model that is no longer trained."""

    def body(group: ThreadGroup) -> None:
        schedule = schedule_of(group, Headcount(2, 2))
        earlier, *both = (schedule.roll.enter() for _ in range(3))
        models, steps = itertools.cycle(both), itertools.count()
        for model in (earlier, earlier, *both, *both, *both):
            schedule.roll.begin(model, next(steps))
        told.given = True
        while not schedule.roll.hands_in:
            schedule.roll.begin(next(models), next(steps))
            time.sleep(0.001)
        assert not leaving(), "the model that was told had decided about its averaging before"
        schedule.roll.begin(next(models), next(steps))
        assert not leaving()
        schedule.roll.begin(next(models), next(steps))
        assert leaving()
        schedule.close()

    ThreadGroup.run(1, body)


@pytest.mark.parametrize(("given", "alpha"), [({}, 0.3), ({"alpha": 0.5}, 0.5)])
def test_alpha_follows_the_groups_unless_it_is_given(given: dict[str, float], alpha: float) -> None:
    def work(algorithm: Algorithm, worker: int) -> np.ndarray:
        weights = Tensor([Arena(LAYOUT).flat])
        weights.vectors[0][:] = 0
        algorithm.initialise("t", LAYOUT, weights)
        algorithm.join_weights("t", LAYOUT, weights)
        algorithm.follow(3, 3, False)
        weights.vectors[0][:] = 1
        algorithm.average_("t", weights, 1)
        return weights.vectors[0].copy()

    with in_thread(Server("tcp://127.0.0.1:*", threads=1)) as Groups.server:
        (weights,) = run((1,), "elastic", work, tau=1, **given)
    np.testing.assert_allclose(weights, 1 - alpha, rtol=1e-6)
