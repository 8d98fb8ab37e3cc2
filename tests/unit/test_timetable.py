"""When weights are averaged, where exchanges decide when later ones are due."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridps.config import Settings
from hybridps.errors import GroupError
from hybridps.events import EventLog
from hybridps.mpi_groups import SoloGroup
from hybridps.step.job_context import JobContext
from hybridps.step.schedule import Schedule
from hybridps.step.weights.timetable import AHEAD, Timetable
from hybridps.tensor_collectives import Levels

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(scope="module")
def schedule() -> Iterator[Schedule]:
    context = JobContext(Settings(quiet=True), 0, 1, EventLog(None, 0), lambda what: nullcontext())
    made = Schedule(Levels(SoloGroup(), [0], 20.0), context)
    yield made
    made.close()


@given(periods=st.lists(st.integers(1, 9), min_size=1, max_size=20), first=st.integers(1, 50))
def test_each_exchange_decides_the_period_after_later_ones(schedule: Schedule, periods: list[int], first: int) -> None:
    timetable, due, step = Timetable(schedule), [], first
    while len(due) < len(periods):
        if timetable.is_due(step):
            timetable.tell(periods[len(due)])
            due.append(step)
        step += 1
    between = [later - before for before, later in zip(due, due[1:], strict=False)]
    assert due[0] == first
    assert between == [*[1] * AHEAD, *periods][: len(between)]


def test_a_step_that_was_not_asked_for_is_made_up_for(schedule: Schedule) -> None:
    timetable = Timetable(schedule)
    timetable.tell(4)
    timetable.tell(4)
    assert [step for step in (1, 5, 6, 7, 9, 10) if timetable.is_due(step)] == [1, 5, 6, 10]


def test_a_program_that_is_ahead_waits_for_the_decision(schedule: Schedule) -> None:
    timetable, due = Timetable(schedule), []

    def ask() -> None:
        due.extend(step for step in range(1, 9) if timetable.is_due(step))

    for _ in range(AHEAD):
        timetable._periods.popleft()
    program = threading.Thread(target=ask)
    program.start()
    time.sleep(0.05)
    assert due == []
    assert program.is_alive()
    timetable.tell(3)
    timetable.tell(3)
    timetable.tell(3)
    program.join()
    assert due == [1, 4, 7]


def test_a_program_that_waits_gets_the_error_that_has_ended_the_schedule() -> None:
    context = JobContext(Settings(quiet=True), 0, 1, EventLog(None, 0), lambda what: nullcontext())
    ended = Schedule(Levels(SoloGroup(), [0], 20.0), context)
    ended.close()
    timetable = Timetable(ended)
    for step in range(1, AHEAD + 1):
        assert timetable.is_due(step)
    with pytest.raises(GroupError, match="the schedule of this worker was closed"):
        timetable.is_due(AHEAD + 1)
