"""The triggers: their limits, and the threshold that a budget controls."""

from __future__ import annotations

import itertools
import tracemalloc

import numpy as np
import pytest

from hybridps.errors import ConfigError
from hybridps.memory import FLOATS, Layout
from hybridps.triggers import Adapt, Budget, Change, Dynamic, EventGrad, Every, State, Trigger, parse, parse_rate
from hybridps.triggers.budget import SAVED
from hybridps.triggers.norms import squared_distances_, squares_
from hybridps.triggers.trigger import runs

LAYOUT = Layout.of("float32", {"a": (37, 5), "b": (300,)})


def walk(steps: int, pace: float = 0.01, dtype: str = "float32"):
    """Weights that take a random step of about `pace` of their size in each step."""
    random = np.random.default_rng(7)
    weights = random.standard_normal(LAYOUT.length).astype(dtype)
    for step in range(steps):
        if step:
            weights += (pace * random.standard_normal(LAYOUT.length)).astype(dtype)
        yield step, weights


def steps_of(trigger: Trigger, steps: int = 40, pace: float = 0.01, **start) -> list[int]:
    """The steps in which the whole table is due, if each exchange leaves the weights as they are."""
    state: State | None = None
    due = []
    for step, weights in walk(steps, pace):
        state = state or trigger.start(LAYOUT, weights, **start)
        if trigger.may_be_due(step) and state.due(step, weights):
            due.append(step)
            state.sent(step, weights, weights.nbytes, 0.01)
    return due


def test_theta_zero_fires_in_every_step_but_the_first() -> None:
    assert steps_of(Change(0.0)) == steps_of(Every(1)) == [*range(1, 40)]
    assert steps_of(Change(0.0), pace=0.0) == [*range(1, 40)]


@pytest.mark.parametrize("tau", [1, 3, 7])
@pytest.mark.parametrize("endless", [Change(None), Dynamic(None), Budget(0.0)], ids=str)
def test_an_infinite_threshold_with_a_bound_on_silence_is_a_fixed_period(endless: Trigger, tau: int) -> None:
    bounded = type(endless)(**{**{name: getattr(endless, name) for name in endless.__struct_fields__}, "silence": tau})
    assert steps_of(bounded) == steps_of(Every(tau)) == [*range(tau, 40, tau)]


@pytest.mark.parametrize("endless", [Change(None), Dynamic(None), Budget(0.0)], ids=str)
def test_what_is_infinite_twice_never_fires(endless: Trigger) -> None:
    assert steps_of(endless, pace=10.0) == []


def test_a_change_fires_when_it_reaches_the_threshold_and_not_before() -> None:
    for theta in (0.02, 0.05):
        reference, expected = None, []
        for step, weights in walk(60):
            reference = weights.copy() if reference is None else reference
            if np.linalg.norm(weights - reference) >= theta * np.linalg.norm(reference):
                expected.append(step)
                reference = weights.copy()
        assert steps_of(Change(theta), 60) == expected
        assert 1 < len(expected) < 40


def test_a_higher_threshold_fires_less_often() -> None:
    counts = [len(steps_of(Change(theta), 200)) for theta in (0.0, 0.02, 0.04, 0.08)]
    assert counts == sorted(counts, reverse=True)
    assert counts[-1] > 0


def test_only_the_chunks_that_have_changed_fire() -> None:
    weights = np.ones(LAYOUT.length, np.float32)
    trigger = Change(0.1, chunk=256)
    state = trigger.start(LAYOUT, weights)
    weights[64:128] = 2
    assert state.due(1, weights)
    assert runs(state.fired, state.edges) == [(64, 128)]
    state.sent(1, weights, 256)
    assert not state.due(2, weights)
    weights[70] = weights[400] = 3
    assert state.due(3, weights)
    assert runs(state.fired, state.edges) == [(384, 448)], "1 < 0.1 * 16, and 2 >= 0.1 * 8"


def test_a_chunk_that_is_silent_for_too_long_fires_alone() -> None:
    weights = np.ones(LAYOUT.length, np.float32)
    state = Change(0.1, chunk=1024, silence=5).start(LAYOUT, weights)
    weights[:10] = 9
    assert state.due(3, weights)
    state.sent(3, weights, 1024)
    assert state.due(5, weights)
    assert [*state.fired] == [False, True]


def test_not_a_number_fires() -> None:
    """The exchange then says what is wrong."""
    for trigger in (Change(0.5), Dynamic(0.5), EventGrad(first=0), Budget(1e9, per="step")):
        weights = np.ones(LAYOUT.length, np.float32)
        state = trigger.start(LAYOUT, weights)
        weights[3] = np.nan
        assert state.due(1, weights), trigger


def test_dynamic_averaging_compares_the_squared_distance() -> None:
    weights = np.zeros(LAYOUT.length, np.float32)
    state = Dynamic(4.0).start(LAYOUT, weights)
    weights[5] = 2
    assert not state.due(1, weights), "4 is not more than 4"
    weights[6] = 0.5
    assert state.due(2, weights)
    state.sent(2, weights)
    assert not state.due(3, weights)


def test_dynamic_averaging_looks_only_when_it_is_told_to() -> None:
    assert steps_of(Dynamic(0.0, check=5)) == [*range(5, 40, 5)]


def test_eventgrad_sends_everything_at_first_and_then_follows_the_slope() -> None:
    """A norm that grows by 1 in each step has the slope 1: the threshold is horizon^n after n steps."""

    def due(horizon: float) -> list[int]:
        weights = np.zeros(LAYOUT.length, np.float32)
        state = EventGrad(horizon, first=4).start(LAYOUT, weights)
        found = []
        for step in range(1, 20):
            weights[0] = weights[200] = step
            if state.due(step, weights):
                assert state.fired.all()
                found.append(step)
                state.sent(step, weights)
        return found

    assert due(0.9) == [*range(1, 20)]
    # 1 < 1.5, 2 < 2.25, 3 < 3.375, ... with the horizon 1.5 the threshold outgrows the norm at once.
    assert due(1.5) == [1, 2, 3, 4]
    # 1 < 1.2, 2 >= 1.44; then the slopes are 1 and 1 again.
    assert due(1.2) == [1, 2, 3, 4, 6, 8, 10, 12, 14, 16, 18]


def test_eventgrad_learns_its_slope_from_its_own_sendings_alone() -> None:
    """The threshold of 10, of a norm that grows by 1 in each step; each sending is answered in the next step."""

    def due(is_answered: bool) -> list[int]:
        weights = np.full(LAYOUT.length, 5, np.float32)
        state = EventGrad(1.0, first=0).start(LAYOUT, weights)
        state._thresholds[:], found = 10, []
        for step in range(1, 60):
            weights += np.float32(0.1)
            if is_answered and step - 1 in found:
                state.fired[:] = True
                state.sent(step, weights, 0, began_here=False)
            if state.due(step, weights):
                found.append(step)
                state.sent(step, weights, LAYOUT.nbytes)
        return found

    apart, together = due(False), due(True)
    assert len(together) <= len(apart)
    assert np.all(np.diff(together) > 1)


def test_a_partner_that_moves_the_weights_moves_the_norms_that_eventgrad_compares_with() -> None:
    weights = np.ones(LAYOUT.length, np.float32)
    state = EventGrad(first=0).start(LAYOUT, weights)
    state._thresholds[:] = 0.5
    weights[:] = 100
    state.fired[:] = True
    state.sent(1, weights, 0, began_here=False)
    assert not state.due(2, weights)


def test_what_is_answered_is_taken_from_the_budget_and_is_no_exchange_of_its_own() -> None:
    weights = np.ones(LAYOUT.length, np.float32)
    state = Budget(LAYOUT.nbytes, per="step").start(LAYOUT, weights)
    assert state.due(1, weights)
    state.fired[:] = False
    state.sent(1, weights, 4 * LAYOUT.nbytes, began_here=False)
    assert [state.due(step, weights) for step in range(2, 5)] == [False, False, True]
    assert np.isnan(state.theta)


def test_eventgrad_decides_on_each_key() -> None:
    weights = np.ones(LAYOUT.length, np.float32)
    state = EventGrad(first=0).start(LAYOUT, weights)
    state.due(1, weights)
    state.sent(1, weights)
    state._thresholds[:] = 0.5
    weights[LAYOUT.slot_of["b"].start] = 100
    assert state.due(2, weights)
    assert [*state.fired] == [False, True]


@pytest.mark.parametrize("every", [2, 5, 20])
def test_a_budget_is_met_and_not_exceeded(every: int) -> None:
    """Bytes a step for an exchange every so many steps; the weights move faster in the middle."""
    nbytes = LAYOUT.nbytes
    state, sent, steps = None, 0, 600
    random = np.random.default_rng(1)
    weights = random.standard_normal(LAYOUT.length).astype(np.float32)
    for step in range(1, steps):
        state = state or Budget(nbytes / every, per="step").start(LAYOUT, weights)
        pace = 0.05 if 200 <= step < 400 else 0.01
        weights += (pace * random.standard_normal(LAYOUT.length)).astype(np.float32)
        if state.due(step, weights):
            state.sent(step, weights, nbytes)
            sent += nbytes
        assert sent <= nbytes / every * step + nbytes
    assert sent >= nbytes / every * steps - (SAVED + 2) * nbytes


def test_a_budget_of_a_second_goes_by_the_clock() -> None:
    clock = itertools.count(0.0, 0.5)
    due = steps_of(Budget(LAYOUT.nbytes / 2), 400, now=lambda: next(clock))
    assert len(due) <= 400 / 4 + 1
    assert len(due) >= 400 / 4 - SAVED - 2


def test_a_budget_spends_more_when_the_weights_change_faster() -> None:
    state, fired = None, {"slow": 0, "fast": 0}
    random = np.random.default_rng(1)
    weights = random.standard_normal(LAYOUT.length).astype(np.float32)
    for step in range(1, 2000):
        state = state or Budget(LAYOUT.nbytes / 10, per="step").start(LAYOUT, weights)
        kind = "fast" if step // 50 % 2 else "slow"
        weights += ({"slow": 0.002, "fast": 0.02}[kind] * random.standard_normal(LAYOUT.length)).astype(np.float32)
        if state.due(step, weights):
            state.sent(step, weights, LAYOUT.nbytes)
            fired[kind] += 1
    assert fired["fast"] > 1.5 * fired["slow"] > 0


def straight(trigger: Adapt, pace: float, cost: float, steps: int = 400) -> list[int]:
    """The steps that are due while the weights go straight on, and a step takes 0.1 s."""
    clock = {"now": 0.0}
    weights = np.ones(LAYOUT.length, np.float32)
    state = trigger.start(LAYOUT, weights, now=lambda: clock["now"])
    due = []
    for step in range(1, steps):
        clock["now"] += 0.1
        weights[:] = 1 + pace * (step - (due[-1] if due else 0))
        if state.due(step, weights):
            due.append(step)
            clock["now"] += cost
            weights[:] = 1
            state.sent(step, weights, LAYOUT.nbytes, cost)
    return due


def test_an_adapted_period_is_theta_over_speed() -> None:
    assert set(np.diff(straight(Adapt(0.2), pace=0.01, cost=0.0))[6:]) == {20}
    assert set(np.diff(straight(Adapt(0.2), pace=0.02, cost=0.0))[6:]) == {10}
    assert straight(Adapt(0.2), pace=0.01, cost=0.0)[:4] == [1, 3, 7, 15], "the period doubles at most"
    assert np.diff(straight(Adapt(0.0), pace=0.01, cost=0.0)).max() == 1


def test_an_adapted_period_is_longer_where_an_exchange_costs_more() -> None:
    assert set(np.diff(straight(Adapt(0.2, share=0.1), pace=0.01, cost=0.3))[8:]) == {30}
    assert set(np.diff(straight(Adapt(0.2, share=0.1, silence=25), pace=0.01, cost=0.3))[8:]) == {25}


@pytest.mark.parametrize("dtype", FLOATS)
def test_sums_of_squares_are_those_of_numpy(dtype: str) -> None:
    random = np.random.default_rng(3)
    values, others = (random.standard_normal(20_000).astype(dtype) for _ in range(2))
    edges, out = np.array([0, 1, 1, 5000, 20_000]), np.zeros(4)
    squares_(out, edges, values)
    wide = values.astype(np.float64)
    np.testing.assert_allclose(out, [np.square(wide[a:b]).sum() for a, b in itertools.pairwise(edges)], rtol=1e-5)
    squared_distances_(out, edges, values, others)
    wide -= others.astype(np.float64)
    tolerance = 2e-3 if dtype == "float16" else 1e-5
    np.testing.assert_allclose(out, [np.square(wide[a:b]).sum() for a, b in itertools.pairwise(edges)], rtol=tolerance)


def test_looking_allocates_nothing_that_grows_with_the_model() -> None:
    weights = np.ones(1 << 20, np.float32)
    layout = Layout.of("float32", {"w": (1 << 20,)})
    for trigger in (Change(0.1), Dynamic(0.1), EventGrad(first=0), Budget(1.0), Adapt(0.1)):
        state = trigger.start(layout, weights)
        state.due(1, weights)
        state.sent(1, weights)
        tracemalloc.start()
        for step in range(2, 6):
            state.due(step, weights)
            state.sent(step, weights)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert most < 64 << 10, trigger


@pytest.mark.parametrize(
    ("text", "trigger"),
    [
        ("always", Every(1)),
        ("every:7", Every(7)),
        ("change:0.05", Change(0.05)),
        ("change:inf,silence=100", Change(None, silence=100)),
        ("change:0.1, silence=9, check=2, chunk=65536", Change(0.1, silence=9, check=2, chunk=65536)),
        ("eventgrad", EventGrad()),
        ("eventgrad:1.05,first=5", EventGrad(1.05, first=5)),
        ("dynamic:3.5,check=10", Dynamic(3.5, check=10)),
        ("budget:10MB/s", Budget(10e6)),
        ("adapt:0.05,share=0.2", Adapt(0.05, 0.2)),
        ("budget:200MB/epoch,epoch=400,silence=50", Budget(5e5, "step", silence=50)),
    ],
)
def test_parse(text: str, trigger: Trigger) -> None:
    assert parse(text) == trigger


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("chnage:0.1", "'chnage' is unknown; did you mean 'change'\\? Use"),
        ("", "is unknown"),
        ("every", "every lacks its tau"),
        ("every:0", ">= 1"),
        ("every:x", "cannot be used"),
        ("every:inf", "cannot be used"),
        ("always:3", "always takes no '3'"),
        ("change", "change lacks its theta"),
        ("change:-1", ">= 0"),
        ("change:nan", "cannot be used"),
        ("change:0.1,silense=4", "no option 'silense=4'; did you mean 'silence'\\?"),
        ("change:0.1,silence=0", ">= 1"),
        ("change:0.1,chunk=100", "multiple of 64"),
        ("every:3,silence=4", "it has no options"),
        ("eventgrad:0", "> 0"),
        ("budget:10MB", "write 10MB/s"),
        ("budget:10XB/s", "write 10MB/s"),
        ("budget:1.2.3MB/s", "write 10MB/s"),
        ("budget:200MB/epoch", "needs the steps of an epoch"),
        ("budget:200MB/epoch,epoch=0", "not a number of steps"),
    ],
)
def test_what_cannot_be_a_trigger_is_refused_by_name(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse(text)


def test_units() -> None:
    assert [parse_rate(text)[0] for text in ("5/s", "5B/s", "5kB/s", "5KiB/s", "2e3MB/step")] == [5, 5, 5e3, 5120, 2e9]
