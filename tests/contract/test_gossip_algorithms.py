"""The algorithms that gossip, over ranks that are threads and real sockets: their limits, and that they converge."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from algorithm_groups import LAYOUT, run

from hybridps.algorithms import Algorithm, choose_row, make_algorithm
from hybridps.algorithms.gossip import Gossip
from hybridps.config import Settings
from hybridps.errors import ConfigError, LayoutError, ServerError
from hybridps.gossip import PushExchange
from hybridps.memory import Arena, Layout
from hybridps.mpi_groups import SoloGroup
from hybridps.ps.rules import Sum
from hybridps.tensor_collectives import Levels, Tensor
from hybridps.tiers import GossipTier, NoTier

pytestmark = pytest.mark.timeout(60)

NAMES = ["gossip", "gosgd", "sgp"]
ETA = np.float32(0.125)


def run_groups(sizes: tuple[int, ...], name: str, work: Callable[[Gossip, int, int], object], **given: object) -> list:
    """Call `work(algorithm, worker, group)` on every worker of groups of these sizes."""
    group_of = np.repeat(np.arange(len(sizes)), sizes)

    def of_worker(algorithm: Algorithm, worker: int) -> object:
        assert isinstance(algorithm, Gossip)
        return work(algorithm, worker, int(group_of[worker]))

    return run(sizes, name, of_worker, **{"lost_seconds": 2.0, "heartbeat_seconds": 0.1, **given})


def join(algorithm: Algorithm, start: np.ndarray) -> Tensor:
    """Begin alike; then the group has weights of its own."""
    weights = Tensor([Arena(LAYOUT).flat])
    weights.vectors[0][:] = start
    algorithm.initialise("t", LAYOUT, weights)
    algorithm.join_gradients("t", LAYOUT)
    assert not algorithm.join_weights("t", LAYOUT, weights)
    algorithm.barrier()
    return weights


def target(worker: int) -> np.ndarray:
    return np.random.default_rng(worker).standard_normal(LAYOUT.length).astype(np.float32)


def train(steps: int):
    """SGD on |w - target of the worker|^2 / 2; the weights, the bytes sent, and the share."""

    def work(algorithm: Gossip, worker: int, group: int) -> tuple[np.ndarray, int, float | None]:
        weights = join(algorithm, np.full(LAYOUT.length, worker, np.float32))
        own, sent = weights.vectors[0], 0
        np.testing.assert_array_equal(own, 0)
        gradient = algorithm.levels.tensor(LAYOUT.length, "float32")
        for step in range(steps):
            if algorithm.averages(step):
                sent += algorithm.average_("t", weights, step)
            gradient.vectors[0][:] = own - target(worker)
            algorithm.finish_(algorithm.reduce_("t", gradient, 0, LAYOUT.length))
            own -= ETA / np.float32(algorithm.workers) * gradient.vectors[0]
            if step % 2:  # the groups keep pace, whatever else the machine does
                algorithm.settle_("t", weights)
        algorithm.settle_("t", weights)
        exchange = algorithm.tier._tables["t"]  # type: ignore[attr-defined]
        return own.copy(), sent, exchange.shares.own if isinstance(exchange, PushExchange) else None

    return work


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("sizes", [(1, 1), (2, 2), (2, 1), (1, 1, 1), (1, 1, 1, 1)])
def test_a_quadratic_converges_to_the_neighbourhood_of_its_optimum(name: str, sizes: tuple[int, ...]) -> None:
    """The groups' optima are as far apart as they can be; apart, each would end at its own."""
    results = run_groups(sizes, name, train(60), trigger="every:1")
    index_of = np.repeat(np.arange(len(sizes)), sizes)
    optima = [np.mean([target(w) for w in np.flatnonzero(index_of == g)], 0) for g in range(len(sizes))]
    for worker, (weights, sent, _) in enumerate(results):
        leader = int(np.flatnonzero(index_of == index_of[worker])[0])
        assert weights.tobytes() == results[leader][0].tobytes()
        assert sent == results[leader][1] > 0
        # The hull of the optima: closer to their mean than alone.
        own = np.linalg.norm(optima[index_of[worker]] - np.mean(optima, 0))
        assert np.linalg.norm(weights - np.mean(optima, 0)) < 0.7 * own
    if name != "gossip":
        assert sum(results[i][2] for i in np.unique(index_of, return_index=True)[1]) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("trigger", ["change:inf", "every:1000"])
def test_a_trigger_that_never_fires_is_independent_sgd(name: str, trigger: str) -> None:
    results = run_groups((1, 1), name, train(20), trigger=trigger)
    for worker, (weights, sent, _) in enumerate(results):
        alone = np.zeros(LAYOUT.length, np.float32)
        for _ in range(20):
            alone -= ETA / np.float32(2) * ((alone - target(worker)) * np.float32(2))
        np.testing.assert_array_equal(weights, alone)
        assert sent == 0


def test_threshold_zero_is_gossip_in_every_step() -> None:
    """The partner only answers, so that each step finds the step before answered."""
    steps = 30

    def work(algorithm: Gossip, worker: int, group: int) -> int:
        weights, sent = join(algorithm, np.zeros(LAYOUT.length, np.float32)), 0
        for step in range(1, steps):
            weights.vectors[0][:] += 1
            if worker == 0:
                sent += algorithm.average_("t", weights, step) == LAYOUT.nbytes
            algorithm.settle_("t", weights)
        return sent

    assert run_groups((1, 1), "gossip", work, trigger="change:0") == [steps - 1, 0]


def test_each_averaging_moves_the_reference_of_both_sides() -> None:
    def work(algorithm: Gossip, worker: int, group: int) -> tuple[int, float]:
        weights = join(algorithm, np.zeros(LAYOUT.length, np.float32))
        weights.vectors[0][:] = 4 + 2 * worker
        if worker == 0:
            algorithm.average_("t", weights, 1)
        algorithm.settle_("t", weights)
        np.testing.assert_array_equal(weights.vectors[0], 5)
        return algorithm.average_("t", weights, 2), algorithm._states["t"].change

    assert run_groups((1, 1), "gossip", work, trigger="change:0.5") == [(0, 0.0)] * 2


def test_a_budget_is_met_with_what_is_answered() -> None:
    """Groups that meet after each step; each pays for its own offers and for its answers."""
    steps, every = 120, 10

    def work(algorithm: Gossip, worker: int, group: int) -> int:
        weights = join(algorithm, np.ones(LAYOUT.length, np.float32))
        random, own = np.random.default_rng(worker), weights.vectors[0]
        for step in range(1, steps + 1):
            own += 0.1 * random.standard_normal(own.size).astype(np.float32)
            algorithm.average_("t", weights, step)
            algorithm.settle_("t", weights)
        assert algorithm.tier._partners is not None  # type: ignore[attr-defined]
        return algorithm.tier._partners.bytes_sent  # type: ignore[attr-defined]

    sent = run_groups((1, 1), "gossip", work, trigger=f"budget:{LAYOUT.nbytes // every}B/step")
    # An exchange above the rate, and the answer to one of the partner's.
    assert max(sent) <= (steps / every + 2) * LAYOUT.nbytes
    assert min(sent) >= 0.3 * steps / every * LAYOUT.nbytes


def test_who_is_silent_is_known_on_all_ranks_of_a_group() -> None:
    def work(algorithm: Gossip, worker: int, group: int) -> list[float]:
        weights = join(algorithm, np.zeros(LAYOUT.length, np.float32))
        tier = algorithm.tier
        assert isinstance(tier, GossipTier)
        if tier._partners is not None:
            tier._partners.peers.silences = lambda: [0.0, 7.5]  # type: ignore[method-assign]
        algorithm.average_("t", weights, 1)
        return [*tier.silences]

    assert run_groups((2, 1), "gossip", work) == [[0.0, 7.5]] * 3


def test_a_change_is_told_only_in_steps_in_which_the_weights_were_looked_at() -> None:
    def work(algorithm: Gossip, worker: int, group: int) -> list[int]:
        weights, looked = join(algorithm, np.ones(LAYOUT.length, np.float32)), []
        for step in range(1, 13):
            algorithm.average_("t", weights, step)
            if np.isfinite(algorithm.change("t")):
                looked.append(step)
        return looked

    assert run_groups((1, 1), "gossip", work, trigger="change:0.5,check=5") == [[5, 10]] * 2


def test_one_group_has_nobody_to_average_with() -> None:
    levels = Levels(SoloGroup(), [0])
    row = choose_row("gossip", Settings(), 1, False, None, None)
    algorithm = make_algorithm(row, levels, NoTier(levels.group), workers=1)
    weights = Tensor([Arena(LAYOUT).flat])
    algorithm.initialise("t", LAYOUT, weights)
    algorithm.join_weights("t", LAYOUT, weights)
    assert not algorithm.averages(5)
    algorithm.close()


def test_own_weights_that_are_not_finite_end_the_group_on_all_ranks() -> None:
    def work(algorithm: Gossip, worker: int, group: int) -> str:
        weights = join(algorithm, np.zeros(LAYOUT.length, np.float32))
        weights.vectors[0][:] = np.nan if group == 0 else 1
        try:
            for step in range(1, 3):
                algorithm.average_("t", weights, step)
        except ServerError as error:
            return str(error)
        finally:
            algorithm.levels.group.barrier()
        return ""

    said = run_groups((2, 1), "gossip", work, trigger="every:1")
    assert said[0] == said[1]
    assert "element 0 is nan" in said[0]
    assert said[2] == ""


def test_the_layouts_of_all_ranks_are_compared() -> None:
    def work(algorithm: Gossip, worker: int, group: int) -> str:
        layout = Layout.of("float32", {"w": (8 + group,)})
        weights = Tensor([Arena(layout).flat])
        try:
            algorithm.initialise("t", layout, weights)
        except LayoutError as error:
            return str(error)
        finally:
            algorithm.levels.group.barrier()
        return ""

    said = run_groups((1, 2), "gossip", work)
    assert said[0] == ""
    assert said[1] == said[2]
    assert "group 1 registers another layout of table '0/t.initial' than group 0: key 'w' has the shape (9,)" in said[1]


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("gosgd", {"trigger": "eventgrad"}, "decides on parts of the weights, and shares are of all of them"),
        ("sgp", {"trigger": "change:0.1,chunk=64"}, "decides on parts"),
        ("gossip", {"topology": "rnig"}, "did you mean 'ring'"),
    ],
)
def test_what_cannot_be_is_refused(name: str, given: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        choose_row(name, Settings(**given), 2, False, None, None)


def test_a_rule_has_no_meaning() -> None:
    with pytest.raises(ConfigError, match="has no meaning without servers"):
        choose_row("gossip", Settings(), 2, False, Sum(), None)


def test_parts_of_the_weights_are_exchanged_alone() -> None:
    def work(algorithm: Gossip, worker: int, group: int) -> np.ndarray:
        weights = join(algorithm, np.ones(LAYOUT.length, np.float32))
        weights.vectors[0][:16] = 3 * (1 - worker)
        if worker == 0:
            assert algorithm.average_("t", weights, 1) == 64
        algorithm.settle_("t", weights)
        return weights.vectors[0].copy()

    for weights in run_groups((1, 1), "gossip", work, trigger="change:1.5,chunk=64"):
        np.testing.assert_array_equal(weights[:16], 1.5)
        np.testing.assert_array_equal(weights[16:], 1)
