"""Ranks of a group find out who of them is slow; ranks are threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from statistics import median

import pytest
import test_step

from hybridps.events import Event, Paced, Recovered, Slowed
from hybridps.step.timing import pace

pytestmark = pytest.mark.timeout(60)

KEYS = list(test_step.KEYS)
USUAL_SECONDS, LONGER_SECONDS = 0.04, 0.12
"""What a rank's own part of a step takes: it does nothing for so long."""

SLOW_STEPS, AHEAD_STEPS = range(20, 50), 60


@pytest.fixture(autouse=True)
def ranks_are_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU time of this process, which has all ranks and what other tests have left, is not that of one rank."""
    monkeypatch.setattr(pace, "_has_one_core", lambda ranks: False)


def train(model: test_step.Model, slow: int | None, steps: int, waits: bool = False) -> list[Event]:
    """The events of a rank; the rank `slow` takes longer in some steps, or waits for others outside of the group."""
    events: list[Event] = []
    model.schedule._context.events.listen = events.append
    for step in range(steps):
        longer = LONGER_SECONDS - USUAL_SECONDS if model.rank == slow and step in SLOW_STEPS else 0.0
        time.sleep(longer)
        if waits:
            model.schedule.call("a wait", lambda longer=longer: model.schedule.pace.leave_out(longer))
        time.sleep(USUAL_SECONDS)
        model.step(KEYS, 1.0)
    return events


def test_a_slow_rank_is_named_within_20_steps_and_recovers() -> None:
    events = test_step.on_ranks(3, lambda model: train(model, 1, 90))
    of_leader, of_slow, of_other = (
        [event for event in each if isinstance(event, (Slowed, Recovered))] for each in events
    )
    assert of_leader == of_slow
    assert of_other == []
    slowed, recovered = of_leader
    assert (slowed.worker, recovered.worker) == (1, 1)
    assert SLOW_STEPS.start < slowed.steps <= SLOW_STEPS.start + 20
    assert recovered.steps > SLOW_STEPS.stop
    assert slowed.own_seconds > LONGER_SECONDS > slowed.others_seconds
    paced = [event for event in events[0] if isinstance(event, Paced)]
    assert len(paced) >= 9
    assert max(event.waiting_seconds for event in paced) > LONGER_SECONDS - 2 * USUAL_SECONDS


def test_time_that_a_rank_waits_between_steps_is_not_its_own() -> None:
    events = test_step.on_ranks(3, lambda model: train(model, 1, 60, waits=True))
    assert not [event for each in events for event in each if isinstance(event, Slowed)]
    paced = [event for event in events[1] if isinstance(event, Paced)]
    during = [event for event in paced if SLOW_STEPS.start + 10 < event.steps <= SLOW_STEPS.stop]
    assert median(event.own_seconds for event in during) < LONGER_SECONDS <= min(event.step_seconds for event in during)


def train_ahead(model: test_step.Model, pauses: Callable[[int], float], reads_loss: bool = False) -> list[Event]:
    """The events of a rank whose program does not wait for sums, and pauses before each step. An engine computes.

    `reads_loss`: after each step the program reads its loss, which needs the sums of the step before.
    """
    events: list[Event] = []
    model.schedule._context.events.listen = events.append
    engine, released = ThreadPoolExecutor(1), list[threading.Event]()

    def compute(arrivals: list[Callable[[], None]], sums: list[threading.Event], loss: threading.Event) -> None:
        assert all(each.wait(20) for each in sums)
        loss.set()
        for arrive in arrivals:
            arrive()

    for step in range(AHEAD_STEPS):
        time.sleep(pauses(step))
        model.sums.begin()
        arrivals, loss = [model.push(name, 1.0, arrives=False) for name in KEYS], threading.Event()
        engine.submit(compute, arrivals, released, loss)
        released = [model.released[name] for name in KEYS]
        if reads_loss:
            model._waits = True
            assert loss.wait(20)
            model._waits = False
    for name in KEYS:
        model.wait(name)
    engine.shutdown()
    return events


def test_a_rank_that_stalled_once_is_late_afterwards_and_not_slow() -> None:
    """No program waits for the sums, so that the others are ahead of this one until the end."""

    def work(model: test_step.Model) -> list[Event]:
        return train_ahead(model, lambda step: LONGER_SECONDS if (model.rank, step) == (1, 8) else USUAL_SECONDS)

    every = test_step.on_ranks(3, work)
    assert not [event for each in every for event in each if isinstance(event, Slowed)]
    for events in every:
        usual = [event.own_seconds for event in events if isinstance(event, Paced)]
        assert len(usual) > 5
        assert median(usual) > 0.9 * USUAL_SECONDS  # at its end the program waits


def test_a_rank_that_waits_for_its_loss_is_no_faster_than_one_that_is_late() -> None:
    """The late one never waits for its loss. Both take as long from one step to the next."""

    def work(model: test_step.Model) -> list[Event]:
        return train_ahead(
            model, lambda step: LONGER_SECONDS if (model.rank, step) == (1, 8) else USUAL_SECONDS, reads_loss=True
        )

    every = test_step.on_ranks(2, work)
    assert not [event for each in every for event in each if isinstance(event, Slowed)]
    for events in every:
        usual = [event.own_seconds for event in events if isinstance(event, Paced)]
        assert len(usual) > 5
        assert 0.9 * USUAL_SECONDS < median(usual) < LONGER_SECONDS


def test_a_rank_that_is_slower_is_slow_though_the_others_read_their_loss() -> None:
    def work(model: test_step.Model) -> list[Event]:
        return train_ahead(model, lambda step: LONGER_SECONDS if model.rank == 1 else USUAL_SECONDS, reads_loss=True)

    every = test_step.on_ranks(2, work)
    assert {event.worker for each in every for event in each if isinstance(event, Slowed)} == {1}
    usual = median(event.own_seconds for event in every[0] if isinstance(event, Paced))
    assert 0.9 * USUAL_SECONDS < usual < (USUAL_SECONDS + LONGER_SECONDS) / 2


def test_a_rank_that_is_slower_at_each_step_is_slow_though_no_program_waits() -> None:
    def work(model: test_step.Model) -> list[Event]:
        return train_ahead(model, lambda step: LONGER_SECONDS if model.rank == 1 else USUAL_SECONDS)

    every = test_step.on_ranks(3, work)
    assert {event.worker for each in every for event in each if isinstance(event, Slowed)} == {1}


def train_at_once(model: test_step.Model, seconds: float) -> list[Event]:
    """The events of a rank whose program goes on before the communication thread has done more than release its sum."""
    events: list[Event] = []
    model.schedule._context.events.listen = events.append
    for _ in range(40):
        time.sleep(seconds)
        model.sums.begin()
        item, ended, resumed = model.sums.push("a"), threading.Event(), threading.Event()
        item(lambda ended=ended, resumed=resumed: (ended.set(), resumed.wait(20)))
        model.schedule.wait_for(ended)
        resumed.set()
    return events


def test_a_wait_that_has_just_ended_is_not_a_ranks_own_time() -> None:
    def work(model: test_step.Model) -> list[Event]:
        return train_at_once(model, LONGER_SECONDS if model.rank == 1 else USUAL_SECONDS)

    every = test_step.on_ranks(2, work, keys={"a": test_step.SPECS["a"]})
    assert {event.worker for each in every for event in each if isinstance(event, Slowed)} == {1}
    usual = median(event.own_seconds for event in every[0] if isinstance(event, Paced))
    assert usual < (USUAL_SECONDS + LONGER_SECONDS) / 2


def test_a_rank_alone_measures_itself() -> None:
    (events,) = test_step.on_ranks(1, lambda model: train(model, None, 25))
    paced = [event for event in events if isinstance(event, Paced)]
    assert paced[0].steps <= 10
    for event in paced:
        assert USUAL_SECONDS < event.own_seconds <= event.step_seconds
        assert USUAL_SECONDS < event.program_seconds <= event.own_seconds
        assert event.waiting_seconds == 0.0
