"""Which workers are named as slow: the comparison itself, and real ranks, one of which is held back."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest

from hybridps.live.slow import LOOKS, LOOKS_IF_CROWDED, MOST_LOOKS, Measured, SlowWorkers, reason_of

STEP = 0.1


def measured(own: float, *, program: float = 0.01, cpu: float = 0.1, delayed: float = math.nan) -> Measured:
    return Measured(STEP, own, program, cpu, delayed)


def looks(workers: SlowWorkers, count: int, *own: float) -> list[tuple[list[int], list[int]]]:
    changes = (workers.look([measured(each) for each in own]) for _ in range(count))
    return [(sorted(change.slow), change.recovered) for change in changes]


def test_a_worker_that_takes_twice_as_long_is_named_once_and_recovers_once() -> None:
    workers = SlowWorkers(1.5, 3)
    named = [([], [])] * (LOOKS - 1) + [([1], [])]
    assert looks(workers, LOOKS, 0.05, 0.1, 0.05) == named
    assert workers.named[1][:2] == (0.1, 0.05)
    assert looks(workers, 20, 0.05, 0.1, 0.05) == [([], [])] * 20
    assert looks(workers, LOOKS, 0.05, 0.05, 0.05) == [([], [])] * (LOOKS - 1) + [([], [1])]
    assert not workers.named


def test_it_takes_looks_in_a_row() -> None:
    workers = SlowWorkers(1.5, 2)
    for _ in range(10):
        assert looks(workers, LOOKS - 1, 0.05, 0.2) == [([], [])] * (LOOKS - 1)
        assert looks(workers, 1, 0.05, 0.05) == [([], [])]


def test_it_takes_longer_on_a_crowded_host() -> None:
    workers = SlowWorkers(1.5, 2, LOOKS_IF_CROWDED)
    named = [([], [])] * (LOOKS_IF_CROWDED - 1) + [([1], [])]
    assert looks(workers, LOOKS_IF_CROWDED, 0.05, 0.1) == named


def test_two_slow_workers_of_eight_are_both_named_and_a_fast_one_is_not() -> None:
    workers = SlowWorkers(1.5, 8)
    found = looks(workers, LOOKS, 0.1, 0.05, 0.01, 0.05, 0.05, 0.05, 0.1, 0.05)
    assert found[-1] == ([0, 6], [])


@pytest.mark.parametrize(("own", "other"), [(0.003, 0.0015), (0.02, 0.0119), (0.074, 0.05)])
def test_what_costs_little_of_a_step_is_not_named(own: float, other: float) -> None:
    assert looks(SlowWorkers(1.5, 2), 10, own, other) == [([], [])] * 10


def test_means_count_where_medians_show_half_of_the_excess_or_a_look_has_shown_all() -> None:
    def look(workers: SlowWorkers, median: float, mean: float) -> list[int]:
        even = measured(0.05)._replace(mean_own_seconds=0.05)
        return sorted(workers.look([even, even._replace(own_seconds=median, mean_own_seconds=mean)]).slow)

    workers = SlowWorkers(1.5, 2)
    assert [look(workers, *each) for each in [(0.1, 0.09), (0.06, 0.09), (0.1, 0.09)]] == [[], [], [1]]
    workers = SlowWorkers(1.5, 2)
    assert [look(workers, 0.07, 0.09) for _ in range(LOOKS)] == [[], [], [1]]
    assert workers.named[1][:2] == (0.09, 0.05)
    workers = SlowWorkers(1.5, 2)
    assert [look(workers, *each) for each in [(0.1, 0.09), (0.06, 0.07), (0.1, 0.09)]] == [[], [], []]
    for median, mean in ((0.06, 0.09), (0.07, 0.074)):
        assert [look(SlowWorkers(1.5, 2), median, mean) for _ in range(LOOKS)] == [[]] * LOOKS


def test_a_worker_that_has_recovered_in_part_stays_named() -> None:
    workers = SlowWorkers(1.5, 2)
    looks(workers, LOOKS, 0.05, 0.1)
    assert looks(workers, 10, 0.05, 0.065) == [([], [])] * 10
    assert looks(workers, LOOKS, 0.05, 0.06)[-1] == ([], [1])


def test_noise_names_nobody() -> None:
    """Medians of five steps, each up to twice as long as the shortest, in 2,000 looks at four workers."""
    noise, workers = random.Random(0), SlowWorkers(1.5, 4)
    for _ in range(2000):
        own = [sorted(noise.uniform(0.05, 0.1) for _ in range(5))[2] for _ in range(4)]
        assert workers.look([measured(each) for each in own]) == ({}, [])


def test_one_worker_has_nobody_to_be_compared_with() -> None:
    assert looks(SlowWorkers(1.5, 1), 5, 0.1) == [([], [])] * 5


def test_a_worker_without_steps_does_not_count() -> None:
    assert looks(SlowWorkers(1.5, 2), 5, 0.1, math.nan) == [([], [])] * 5
    assert looks(SlowWorkers(1.5, 3), LOOKS, 0.1, math.nan, 0.05)[-1] == ([0], [])


@pytest.mark.parametrize(
    ("mine", "reason"),
    [
        (measured(0.1, delayed=0.05), "cpu"),
        (measured(0.1, cpu=0.15, delayed=0.01), "compute"),
        (measured(0.1, program=0.055), "loader"),
        (measured(0.1, program=0.02), "compute"),  # a device, say, whose work is no time of the CPU
        (measured(0.1, program=math.nan), "pauses"),
    ],
)
def test_the_reason_is_where_most_of_the_excess_comes_from(mine: Measured, reason: str) -> None:
    assert reason_of(mine, measured(0.055)) == reason


def stalling(workers: SlowWorkers, means: Sequence[float], usual: float = 0.05) -> list[tuple[list[int], list[int]]]:
    """Looks at two workers with equal medians; the mean of the second one is different each time."""
    even = measured(usual)._replace(mean_own_seconds=usual, mean_program_seconds=0.01)
    changes = (
        workers.look([even, even._replace(mean_own_seconds=mean, mean_program_seconds=0.01 + mean - usual)])
        for mean in means
    )
    return [(sorted(change.slow), change.recovered) for change in changes]


def test_a_worker_that_stalls_in_every_other_look_is_named_by_its_mean_and_recovers() -> None:
    workers = SlowWorkers(1.5, 2)
    found = stalling(workers, [0.05, 0.25] * MOST_LOOKS)
    assert [change for change in found if change != ([], [])] == [([1], [])]
    named = workers.named[1]
    assert (named.own_seconds, named.others_seconds) == (pytest.approx(0.15), pytest.approx(0.05))
    assert named.reason == "loader"
    found = stalling(workers, [0.05] * 2 * MOST_LOOKS)
    assert [change for change in found if change != ([], [])] == [([], [1])]
    assert stalling(workers, [0.05] * 2 * MOST_LOOKS) == [([], [])] * 2 * MOST_LOOKS


@pytest.mark.parametrize("every", [MOST_LOOKS, 2 * MOST_LOOKS])
def test_a_worker_that_stalls_once_in_a_while_is_not_named(every: int) -> None:
    means = [2.0 if look % every == 3 else 0.05 for look in range(10 * MOST_LOOKS)]
    assert stalling(SlowWorkers(1.5, 2), means) == [([], [])] * len(means)


def test_noise_in_the_means_names_nobody() -> None:
    """Five steps a look, each of which is five times as long with a probability of 5 %, on every worker."""
    noise, workers = random.Random(0), SlowWorkers(1.5, 4)
    for _ in range(2000):
        means = [sum(0.05 if noise.random() > 0.05 else 0.25 for _ in range(5)) / 5 for _ in range(4)]
        assert workers.look([measured(0.05)._replace(mean_own_seconds=mean) for mean in means]) == ({}, [])


def test_while_anybody_is_suspected_everybody_finds_out_why() -> None:
    workers = SlowWorkers(1.5, 2)
    looks(workers, 1, 0.05, 0.05)
    assert not workers.suspects
    looks(workers, 1, 0.05, 0.1)
    assert workers.suspects


def test_reasons_are_told_by_name() -> None:
    workers = SlowWorkers(1.5, 2)
    for _ in range(LOOKS):
        changes = workers.look([measured(0.05), measured(0.1, program=0.07)])
    assert changes.slow[1].reason == "loader"
