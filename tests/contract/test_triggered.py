"""All algorithms and triggers on a quadratic with a known optimum: convergence, limits, and what they conserve.

Worker i has the loss sum over the elements of A (w - optimum_i)^2 / 2, with the same A for all.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from algorithm_groups import LAYOUT, SETTINGS_GIVEN, Groups, reduced, run
from in_thread import in_thread

from hybridps.algorithms import KNOWN, Algorithm, choose_row, make_algorithm
from hybridps.config import Settings
from hybridps.errors import ConfigError, ServerError
from hybridps.memory import Arena, Layout
from hybridps.mpi_groups import ThreadGroup
from hybridps.ps.client import Client
from hybridps.ps.clocks import BoundedStale
from hybridps.ps.rules import SGD, Mean, Outer, Rule
from hybridps.ps.server import Server
from hybridps.tensor_collectives import Levels, Tensor
from hybridps.triggers import Adapt, Every, Trigger

pytestmark = pytest.mark.timeout(60)

RATE = np.float32(0.25)
A = np.linspace(0.2, 1, LAYOUT.length).astype(np.float32)
START = np.random.default_rng(99).standard_normal(LAYOUT.length).astype(np.float32)
NBYTES = LAYOUT.nbytes

AVERAGING = ("elastic", "easgd", "eamsgd", "local", "diloco", "gossip")
TOGETHER = ("easgd", "local", "diloco")
TRIGGERS = (
    "always",
    "every:3",
    "change:0.05,silence=20",
    "change:0.05,silence=20,chunk=256",
    "eventgrad:0.95,first=5",
    "dynamic:0.5",
    f"budget:{NBYTES // 4}B/step",
    "adapt:0.1,silence=20",
)
SIZES = [(1, 1), pytest.param((2, 1), marks=pytest.mark.slow), pytest.param((1, 1, 1), marks=pytest.mark.nightly)]
LIKE_OTHERS = ("easgd", "eamsgd", "diloco")
"""Algorithms with which triggers fire as with elastic or local, by the same code."""


@pytest.fixture(scope="module", autouse=True)
def server() -> Iterator[Server]:
    """One server for all jobs of this module."""
    with in_thread(Server("tcp://127.0.0.1:*", threads=2)) as running:
        Groups.server = running
        yield running


def optimum(worker: int) -> np.ndarray:
    return np.random.default_rng(worker).standard_normal(LAYOUT.length).astype(np.float32)


def descend(steps: int, optimum_of: Callable[[int], np.ndarray], meeting: threading.Barrier | None = None):
    """SGD with the mean gradient: the weights after each step, and the payload bytes that each averaging sent.

    The workers wait for each other in each step, if there is a `meeting`.
    """

    def work(algorithm: Algorithm, worker: int) -> tuple[list[np.ndarray], list[int]]:
        weights = Tensor([Arena(LAYOUT).flat])
        w = weights.vectors[0]
        w[:] = START
        algorithm.initialise("t", LAYOUT, weights)
        algorithm.join_gradients("t", LAYOUT)
        algorithm.join_weights("t", LAYOUT, weights)
        seen, sent = [], []
        for step in range(steps):
            if meeting is not None:
                meeting.wait()
            sent.append(algorithm.average_("t", weights, step) if algorithm.averages(step) else 0)
            found = reduced(algorithm, A * (w - optimum_of(worker)))
            if algorithm.updates:
                w[:] = found
            else:
                w -= RATE / np.float32(algorithm.workers) * found
            seen.append(w.copy())
        return seen, sent

    return work


def alone(steps: int, to: np.ndarray) -> list[np.ndarray]:
    """What one process with the mean of all losses would have after each step."""
    w, seen = START.copy(), []
    for _ in range(steps):
        w = w - RATE * (A * (w - to))
        seen.append(w)
    return seen


def rule_for(name: str, workers: int) -> Rule | None:
    return SGD(rate=float(RATE), rescale=1 / workers) if KNOWN[name].is_asynchronous else None


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("name", KNOWN)
def test_all_converge_to_a_common_optimum(name: str, sizes: tuple[int, ...]) -> None:
    """The distance shrinks by 1 - 0.25 * 0.2 in the slowest element: to 4e-5 of what it was in 200 steps, by itself.

    The centre of Elastic SGD follows, and so holds it up; the outer momentum of DiLoCo swings for some more rounds.
    """
    to, steps = optimum(0), 200
    bounds = {"elastic": 0.02, "eamsgd": 0.02, "easgd": 0.02, "diloco": 0.1}
    work = descend(steps, lambda worker: to, threading.Barrier(sum(sizes), timeout=30))
    for seen, _ in run(sizes, name, work, rule=rule_for(name, sum(sizes)), deadline_seconds=40.0):
        np.testing.assert_allclose(seen[-1], to, atol=bounds.get(name, 2e-3))


@pytest.mark.parametrize("trigger", TRIGGERS)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.nightly] * (name in LIKE_OTHERS)) for name in AVERAGING]
)
def test_every_trigger_converges_to_a_common_optimum(name: str, trigger: str) -> None:
    to, steps = optimum(0), 200
    work = descend(steps, lambda worker: to, threading.Barrier(3, timeout=30))
    results = run((2, 1), name, work, trigger=trigger)
    for seen, _ in results:
        np.testing.assert_allclose(seen[-1], to, atol=0.05)
    for mine, other in zip(results[0][0], results[1][0], strict=True):
        np.testing.assert_array_equal(mine, other, "ranks of a group")


@pytest.mark.parametrize("sizes", [(1, 1), (1, 1, 1), pytest.param((2, 2), marks=pytest.mark.slow)])
@pytest.mark.parametrize("trigger", TRIGGERS)
def test_local_sgd_conserves_the_mean(trigger: str, sizes: tuple[int, ...]) -> None:
    """However often the groups average, the mean of their weights is that of one process with all data.

    In each step, as all have the same A. Groups count alike in the mean, so they are of equal size here.
    """
    steps, workers = 30, sum(sizes)
    expected = alone(steps, sum(optimum(worker) for worker in range(workers)) / workers)
    results = run(sizes, "local", descend(steps, optimum), trigger=trigger)
    for step in range(steps):
        mean = sum(seen[step] for seen, _ in results) / workers
        np.testing.assert_allclose(mean, expected[step], atol=1e-5)
    assert any(any(sent) for _, sent in results)


@pytest.mark.parametrize("trigger", TRIGGERS)
def test_without_another_group_every_algorithm_is_plain_sgd(trigger: str) -> None:
    expected = alone(10, optimum(0))
    for name in KNOWN:
        given = {"trigger": trigger} if name in AVERAGING else {}
        ((seen, sent),) = run((1,), name, descend(10, optimum), has_servers=False, **given)
        np.testing.assert_array_equal(seen, expected)
        assert not any(sent)


@pytest.mark.parametrize("trigger", TRIGGERS)
@pytest.mark.parametrize("rule", [Mean(), Outer(rate=1.0, momentum=0.0)], ids=str)
def test_one_group_at_a_server_that_takes_the_mean_is_plain_sgd(rule: Rule, trigger: str) -> None:
    name = "local" if isinstance(rule, Mean) else "diloco"
    ((seen, sent),) = run((1,), name, descend(10, optimum), rule=rule, trigger=trigger)
    np.testing.assert_allclose(seen, alone(10, optimum(0)), atol=1e-6)
    assert any(sent) or "0.05" in trigger or "dynamic" in trigger or "adapt" in trigger


@pytest.mark.parametrize("name", TOGETHER)
def test_limits_of_the_threshold(name: str) -> None:
    """theta = 0 is every step; an infinite one with silence is a fixed period; infinite in both, no communication."""

    def weights(trigger: str) -> list[list[np.ndarray]]:
        return [seen for seen, _ in run((1, 1), name, descend(12, optimum), trigger=trigger)]

    np.testing.assert_array_equal(weights("change:0"), weights("always"))
    np.testing.assert_array_equal(weights("change:inf,silence=4"), weights("every:4"))
    apart = [alone_in_group(12, worker) for worker in range(2)]
    np.testing.assert_array_equal(weights("change:inf"), apart)
    np.testing.assert_array_equal(weights("dynamic:inf"), apart)


def alone_in_group(steps: int, worker: int) -> list[np.ndarray]:
    """Of a group of one among two: its gradient stands for both, and is divided by both."""
    w, seen = START.copy(), []
    for _ in range(steps):
        w = w - RATE / np.float32(2) * (A * (w - optimum(worker)) * np.float32(2))
        seen.append(w)
    return seen


@pytest.mark.parametrize("name", ["elastic", "easgd"])
def test_alpha_zero_leaves_the_groups_independent(name: str) -> None:
    results = run((1, 1), name, descend(12, optimum), trigger="always", alpha=0.0)
    for worker, (seen, sent) in enumerate(results):
        np.testing.assert_array_equal(seen, alone_in_group(12, worker))
        assert sent == [0, *[NBYTES] * 11]


@pytest.mark.parametrize("trigger", ["always", "change:0.01", "change:0.01,chunk=256"])
def test_synchronous_elastic_exchanges_conserve_all_weights_and_the_centre(trigger: str) -> None:
    meeting = threading.Barrier(2, timeout=30)

    def work(algorithm: Algorithm, worker: int) -> list[tuple[np.ndarray, np.ndarray]]:
        weights, centre = (Tensor([Arena(LAYOUT).flat]) for _ in range(2))
        weights.vectors[0][:] = 1
        algorithm.join_weights("t", LAYOUT, weights)
        weights.vectors[0][:] = optimum(worker)
        seen = []
        for step in range(1, 8):
            algorithm.average_("t", weights, step)
            algorithm.read_centre("t", centre)
            seen.append((weights.vectors[0].copy(), centre.vectors[0].copy()))
            meeting.wait()
        return seen

    for (one, centre), (other, _) in zip(*run((1, 1), "easgd", work, trigger=trigger), strict=True):
        np.testing.assert_allclose(one + other + centre, optimum(0) + optimum(1) + 1, atol=1e-5)


def once(change: Callable[[np.ndarray, int], None]):
    """Change equal weights, and average once: the weights then, and the bytes sent."""

    def work(algorithm: Algorithm, worker: int) -> tuple[np.ndarray, int]:
        weights = Tensor([Arena(LAYOUT).flat])
        weights.vectors[0][:] = 1
        algorithm.join_weights("t", LAYOUT, weights)
        change(weights.vectors[0], worker)
        algorithm.levels.group.broadcast_(weights.vectors[0])
        sent = algorithm.average_("t", weights, 1)
        return weights.vectors[0], sent

    return work


@pytest.mark.parametrize("name", ["local", "easgd"])
@pytest.mark.parametrize("trigger", ["change:0.5", "dynamic:1"])
def test_one_group_that_fires_makes_all_average(name: str, trigger: str) -> None:
    def only_the_last(weights: np.ndarray, worker: int) -> None:
        weights[:] = 5 if worker == 3 else 1

    results = run((2, 1, 1), name, once(only_the_last), trigger=trigger)
    assert [sent for _, sent in results] == [NBYTES] * 4
    if name == "local":
        for weights, _ in results:
            np.testing.assert_allclose(weights, (1 + 1 + 5) / 3, rtol=1e-6)


def test_of_groups_that_do_not_wait_only_those_that_fire_exchange() -> None:
    def only_the_last(weights: np.ndarray, worker: int) -> None:
        weights[:] = 5 if worker == 2 else 1

    results = run((2, 1), "elastic", once(only_the_last), trigger="change:0.5", alpha=0.25)
    assert [sent for _, sent in results] == [0, 0, NBYTES]
    assert [set(weights) for weights, _ in results] == [{1}, {1}, {4}]


@pytest.mark.parametrize("name", ["elastic", "local"])
def test_only_the_chunks_that_fire_are_exchanged(name: str) -> None:
    def some(weights: np.ndarray, worker: int) -> None:
        weights[64:128] = weights[192:320] = 5 if worker == 0 else 1
        weights[400] = 1.1

    results = run((1, 1), name, once(some), trigger="change:0.5,chunk=256", alpha=0.5)
    weights, sent = results[0]
    assert sent == 4 * (64 + 128)
    assert set(weights[64:128]) == set(weights[192:320]) == {3}
    assert set(weights[:64]) == set(weights[128:192]) == {1}
    assert weights[400] == np.float32(1.1)


def test_many_chunks_that_fire_are_exchanged_though_a_server_takes_only_some_at_a_time() -> None:
    """The second group is late, and the first one does not send more than the server takes meanwhile."""
    layout, chunk = Layout.of("float32", {"w": (600, 2, 16)}), 64

    def work(algorithm: Algorithm, worker: int) -> tuple[np.ndarray, int]:
        arena = Arena(layout)
        arena.flat[:] = 1
        algorithm.join_weights("t", layout, Tensor([arena.flat]))
        arena.view("w")[:, 1] = 5 if worker == 0 else 1
        exchange = algorithm.tier.exchange

        def late(table: str, *given):
            time.sleep(0.003 if worker == 1 and table == "t" else 0)
            return exchange(table, *given)

        algorithm.tier.exchange = late
        return arena.view("w"), algorithm.average_("t", Tensor([arena.flat]), 1)

    weights, sent = run((1, 1), "local", work, trigger=f"change:0.5,chunk={chunk}", chunk_bytes=1 << 20)[0]
    assert sent == 600 * chunk
    assert set(weights[:, 1].flat) == {3}
    assert set(weights[:, 0].flat) == {1}


def test_keys_of_eventgrad_are_exchanged_apart() -> None:
    """Both norms move at first, and have a slope from then on; then only that of `b` moves."""
    b = LAYOUT.slot_of["b"]

    def work(algorithm: Algorithm, worker: int) -> list[int]:
        weights = Tensor([Arena(LAYOUT).flat])
        weights.vectors[0][:] = 1
        algorithm.join_weights("t", LAYOUT, weights)
        sent = []
        for step, moved in enumerate((slice(None), slice(b.start, None), slice(0)), 1):
            weights.vectors[0][moved] += 1
            sent.append(algorithm.average_("t", weights, step))
        return sent

    of_b = 4 * (LAYOUT.length - b.start)
    assert run((1, 1), "elastic", work, trigger="eventgrad,first=0", alpha=0.0) == [[NBYTES, of_b, 0]] * 2


def test_alpha_is_tied_to_the_learning_rate() -> None:
    """alpha = rate * rho of each step, also when the program is steps ahead."""

    def work(algorithm: Algorithm, worker: int) -> list[float]:
        weights = Tensor([Arena(LAYOUT).flat])
        algorithm.join_weights("t", LAYOUT, weights)
        for step, rate in ((1, 0.1), (2, 0.2), (3, 0.0)):
            algorithm.note_rate(step, rate)
        moves = []
        for step in (1, 2, 3):
            algorithm.read_centre("t", weights)
            weights.vectors[0][:] += 1
            before = weights.vectors[0].copy()
            assert algorithm.average_("t", weights, step) == NBYTES
            moves.append(float((before - weights.vectors[0]).max()))
        return moves

    for name in ("elastic", "easgd", "eamsgd"):
        (moves,) = run((1,), name, work, trigger="always", rho=2.5)
        np.testing.assert_allclose(moves, [0.25, 0.5, 0], rtol=1e-5)


def test_a_rate_that_is_not_known_is_said() -> None:
    def work(algorithm: Algorithm, worker: int) -> str:
        weights = Tensor([Arena(LAYOUT).flat])
        algorithm.join_weights("t", LAYOUT, weights)
        with pytest.raises(ConfigError, match="let the store update.*or set HYBRIDPS_ALPHA"):
            algorithm.average_("t", weights, 1)
        algorithm.note_rate(2, 3.0)
        with pytest.raises(ConfigError, match="alpha = rate . rho = 3.0 . 0.5 = 1.5 in step 2 is not between 0 and 1"):
            algorithm.average_("t", weights, 2)
        return "said"

    assert run((2, 1), "elastic", work, trigger="always", rho=0.5) == ["said"] * 3


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("sync", {"trigger": "change:0.1"}, "'sync', which sends gradients in every step: leave it out, or use"),
        ("async", {"trigger": "every:3"}, "'async', which sends gradients in every step"),
        ("elastic", {"trigger": "every:3", "tau": 4}, "give only one .every:4 is a trigger"),
        ("elastic", {"trigger": "chang:3"}, "did you mean 'change'"),
        ("elastic", {"trigger": "change:3", "backend": "mxnet"}, "needs the servers of hybridps"),
        ("elastic", {"rho": 1.0, "alpha": 0.5}, "both say what alpha is"),
        ("local", {"rho": 1.0}, "no meaning with the algorithm 'local'.*use elastic, easgd or eamsgd"),
        ("sync", {"rho": 1.0}, "no meaning with the algorithm 'sync'"),
        ("elastic", {"rho": 1.0, "racks": 2}, "needs one rack"),
        ("elastic", {"trigger": "eventgrad", "racks": 2}, "decides on parts of the weights, and HYBRIDPS_RACKS=2"),
        ("elastic", {"trigger": "change:1,chunk=64", "racks": 2}, "decides on parts of the weights"),
        ("gosgd", {"gossip": "pull"}, "HYBRIDPS_GOSSIP=pull has no meaning with the algorithm 'gosgd'"),
        ("sgp", {"gossip": "pull"}, "HYBRIDPS_GOSSIP=pull has no meaning"),
        ("elastic", {"gossip": "pull"}, "HYBRIDPS_GOSSIP=pull has no meaning with the algorithm 'elastic'"),
        ("elastic", {"topology": "ring"}, "HYBRIDPS_TOPOLOGY=ring has no meaning"),
        ("sync", {"partners": "fast"}, "HYBRIDPS_PARTNERS=fast has no meaning"),
        ("gossip", {"alpha": 0.5}, "HYBRIDPS_ALPHA=0.5 has no meaning with the algorithm 'gossip'"),
        ("local", {"outer_rate": 0.5}, "HYBRIDPS_OUTER_RATE=0.5 has no meaning with the algorithm 'local' and the"),
        ("elastic", {"outer_momentum": 0.5}, "HYBRIDPS_OUTER_MOMENTUM=0.5 has no meaning"),
        ("gossip", {"gossip": "pull", "trigger": "budget:1MB/s"}, "has no meaning with HYBRIDPS_GOSSIP=pull"),
    ],
)
def test_settings_that_do_not_fit_are_refused_by_name(name: str, settings: dict, said: str) -> None:
    rule = SGD(rate=0.1) if name == "async" else None
    with pytest.raises(ConfigError, match=said):
        choose_row(name, Settings(**settings), 2, True, rule, None)


@pytest.mark.parametrize("rule", [Mean(), Outer()], ids=str)
def test_a_rule_without_alpha_has_none_that_is_tied(rule: Rule) -> None:
    with pytest.raises(ConfigError, match="HYBRIDPS_RHO=1.0 has no meaning with the algorithm 'elastic' and the rule"):
        choose_row("elastic", Settings(rho=1.0), 2, True, rule, None)


def test_parts_are_refused_with_a_clock_by_which_groups_wait_for_each_other_s_parts() -> None:
    settings = Settings(trigger="change:1,chunk=64")
    with pytest.raises(ConfigError, match="decides on parts of the weights, and with the clock BoundedStale"):
        choose_row("diloco", settings, 2, True, Outer(), BoundedStale(1))


def test_settings_that_fit_are_taken() -> None:
    for name, given in (("diloco", {"outer_rate": 0.5}), ("gossip", {"gossip": "pull"}), ("sgp", {"topology": "ring"})):
        assert choose_row(name, Settings(**given), 2, True, None, None).name == name


def faulty(name: str, trigger: str, again: Callable[[Algorithm, Tensor], object]):
    """Two groups train; the second one is lost, and comes again while the first one goes on. What each one saw."""
    settings = {**SETTINGS_GIVEN, "heartbeat_seconds": 0.1, "trigger": trigger}
    groups = Groups((1, 1), True, Settings(**settings))
    row = choose_row(name, groups.settings, 2, True, None, None)
    came_again, done = threading.Event(), threading.Event()

    def joined(world: ThreadGroup, levels: Levels, store: Client) -> tuple[Algorithm, Tensor]:
        algorithm = make_algorithm(row, levels, groups.tier(levels, store), workers=2)
        weights = Tensor([Arena(LAYOUT).flat])
        weights.vectors[0][:] = 1
        algorithm.join_weights("t", LAYOUT, weights)
        return algorithm, weights

    def body(world: ThreadGroup) -> object:
        levels, store = groups.open(world)
        algorithm, weights = joined(world, levels, store)
        for step in range(1, 5):
            weights.vectors[0][:] += 1 + world.rank
            algorithm.average_("t", weights, step)
        if world.rank == 1:
            store.close(lost=True)
            store = groups.connect(1)  # which waits until the server has missed the group
            came_again.set()
            try:
                seen = again(*joined(world, levels, store))
            except ServerError as error:
                seen = error
            store.close()
            done.set()
            return seen
        steps = 5
        while not done.is_set():
            weights.vectors[0][:] += 1
            algorithm.average_("t", weights, steps)
            steps += 1
        store.close()
        assert came_again.is_set()
        return steps

    with in_thread(Server("tcp://127.0.0.1:*", threads=2, lost_seconds=1.0)) as server:
        groups.addresses = [server.address]
        return ThreadGroup.run(2, body)


@pytest.mark.parametrize("trigger", ["every:1", "change:0.1,silence=3"])
def test_a_group_that_is_lost_is_not_waited_for_and_may_come_again(trigger: str) -> None:
    """Where groups do not wait for each other with any trigger; where they do, with one that the step decides."""

    def go_on(algorithm: Algorithm, weights: Tensor) -> float:
        centre = float(weights.vectors[0][0])
        for step in range(1, 4):
            weights.vectors[0][:] += 1
            algorithm.average_("t", weights, step)
        algorithm.close()
        return centre

    for name in ("elastic", *TOGETHER)[: 4 if trigger.startswith("every") else 1]:
        steps, centre = faulty(name, trigger, go_on)
        assert steps > 5
        assert centre > 1.5, "it begins with the centre that the others have trained"


@pytest.mark.parametrize("name", TOGETHER)
def test_a_group_that_comes_when_others_have_voted_is_refused_and_they_go_on(name: str) -> None:
    steps, refused = faulty(name, "change:0.1", lambda algorithm, weights: "was let in")
    assert steps > 5
    assert isinstance(refused, ServerError)
    assert "start all groups together" in str(refused)
    assert "every:TAU" in str(refused)


@pytest.mark.parametrize(
    ("name", "given", "rule", "trigger"),
    [
        ("elastic", {}, None, Adapt(0, share=0.1, silence=10)),
        ("eamsgd", {}, None, Adapt(0, share=0.1, silence=10)),
        ("elastic", {"tau": 7}, None, Every(7)),
        ("elastic", {"trigger": "always"}, None, Every(1)),
        ("elastic", {"backend": "mxnet"}, None, Every(10)),
        ("elastic", {}, Outer(), Every(10)),
        ("easgd", {}, None, Every(10)),
        ("local", {}, None, Every(10)),
        ("diloco", {"tau": 500}, None, Every(500)),
        ("gossip", {}, None, Every(10)),
    ],
)
def test_when_weights_are_averaged_by_default(name: str, given: dict, rule: Rule | None, trigger: Trigger) -> None:
    """Where a group waits for nobody it chooses by itself."""
    assert choose_row(name, Settings(**given), 2, True, rule, None).trigger == trigger
