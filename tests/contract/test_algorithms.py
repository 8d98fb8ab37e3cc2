"""The algorithms over threads and an in-process server: their limits and what they conserve."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest

from hybridps.algorithms import MpiESGD, MpiSGD, ServerSGD, make_algorithm
from hybridps.algorithms.algorithm import Algorithm
from hybridps.algorithms.uplink import FollowerUplink, LeaderUplink, NoUplink
from hybridps.config import Settings
from hybridps.errors import ConfigError, ServerError
from hybridps.memory import Arena, Layout
from hybridps.mpi_groups import SoloGroup, ThreadGroup
from hybridps.ps.clocks import BoundedStale, Clock, FreeRunning
from hybridps.ps.local import LocalServer, LocalStore
from hybridps.ps.rules import SGD, ElasticTogether, Momentum, Outer, Rule
from hybridps.tensor_collectives import Levels, Tensor

LAYOUT = Layout.of("float32", {"a": (37, 5), "b": (300,)})
ETA = np.float32(0.25)


def run(
    sizes: tuple[int, ...],
    name: str,
    work: Callable[[Algorithm, int], object],
    nodes: int = 4,
    rule: Rule | None = None,
    clock: Clock | None = None,
    **settings,
) -> list:
    """Call `work(algorithm, worker)` on every worker of groups of these sizes; a server if there are several."""
    server = LocalServer()
    given = Settings(chunk_bytes=1024, **settings)

    def body(world: ThreadGroup) -> object:
        index = next(g for g in range(len(sizes)) if world.rank < sum(sizes[: g + 1]))
        group = world.split(index)
        if len(sizes) == 1 and name == "sync" and rule is None:
            uplink = NoUplink(group)
        elif group.rank == 0:
            uplink = LeaderUplink(LocalStore(server, job="job", group=index, groups=len(sizes), settings=given), group)
        else:
            uplink = FollowerUplink(group)
        levels = Levels(group, [rank // nodes for rank in range(group.size)])
        algorithm = make_algorithm(
            name,
            levels,
            uplink,
            given,
            workers=sum(sizes),
            groups=len(sizes),
            has_servers=not isinstance(uplink, NoUplink),
            rule=rule,
            clock=clock,
        )
        result = work(algorithm, world.rank)
        world.barrier()
        algorithm.close()
        return result

    return ThreadGroup.run(sum(sizes), body)


def reduced(algorithm: Algorithm, gradient: np.ndarray) -> np.ndarray:
    tensor = algorithm.levels.tensor(LAYOUT.length, "float32")
    tensor.vectors[0][:] = gradient
    chunk = 1024 // 4
    starts = range(0, LAYOUT.length, chunk)
    for start in starts:
        algorithm.reduce_("t", tensor, start, min(start + chunk, LAYOUT.length))
    for _ in starts:
        algorithm.finish_()
    return tensor.vectors[0]


def start_weights(worker: int) -> np.ndarray:
    return np.random.default_rng(worker).standard_normal(LAYOUT.length).astype(np.float32)


def gradient(worker: int, step: int) -> np.ndarray:
    return np.random.default_rng(100 * step + worker).integers(-4, 5, LAYOUT.length).astype(np.float32)


def train(steps: int, zero: bool = False):
    """SGD with the sum of all gradients divided by the workers; returns the weights after each step."""

    def work(algorithm: Algorithm, worker: int) -> list[np.ndarray]:
        arena = Arena(LAYOUT)
        weights = Tensor([arena.flat])
        arena.flat[:] = start_weights(worker)
        algorithm.initialise("t", LAYOUT, weights)
        algorithm.join_gradients("t", LAYOUT)
        algorithm.join_weights("t", LAYOUT, weights)
        after = []
        for step in range(steps):
            if algorithm.averages(step):
                algorithm.average_("t", weights)
            g = reduced(algorithm, gradient(worker, step) * (not zero))
            arena.flat -= ETA * g
            after.append(arena.flat.copy())
        return after

    return work


ALL_SIZES = [(1,), (2,), (4,), (1, 1), (2, 2), (2, 1), (1, 1, 1), (3, 2)]


@pytest.mark.parametrize("sizes", ALL_SIZES)
def test_sync_equals_one_process_with_the_whole_batch(sizes) -> None:
    results = run(sizes, "sync", train(3))
    weights = results[0][0] + ETA * sum(gradient(w, 0) for w in range(sum(sizes)))
    for step in range(3):
        weights = weights - ETA * sum(gradient(worker, step) for worker in range(sum(sizes)))
        for result in results:
            np.testing.assert_allclose(result[step], weights, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("sizes", ALL_SIZES)
@pytest.mark.parametrize("name", ["sync", "elastic"])
def test_all_begin_with_the_same_weights(sizes, name: str) -> None:
    results = run(sizes, name, train(1, zero=True))
    assert any((results[0][0] == start_weights(w)).all() for w in range(sum(sizes)))
    for result in results:
        np.testing.assert_array_equal(result[0], results[0][0])


@pytest.mark.parametrize("sizes", [(2, 2), (2, 1), (3, 2)])
def test_ranks_of_a_group_stay_identical(sizes) -> None:
    results = run(sizes, "elastic", train(9), tau=2)
    for group, size in enumerate(sizes):
        first = sum(sizes[:group])
        for worker in range(first, first + size):
            for step in range(9):
                assert results[worker][step].tobytes() == results[first][step].tobytes()
    assert not np.array_equal(results[0][-1], results[-1][-1])


def test_elastic_in_one_group_scales_nothing() -> None:
    g = run((2,), "elastic", lambda a, worker: reduced(a, gradient(worker, 0)))[0]
    np.testing.assert_array_equal(g, gradient(0, 0) + gradient(1, 0))


def test_elastic_gradients_stand_for_all_workers() -> None:
    results = run((2, 1), "elastic", lambda a, worker: reduced(a, gradient(worker, 0)))
    np.testing.assert_allclose(results[0], (gradient(0, 0) + gradient(1, 0)) * 3 / 2, rtol=1e-6)
    np.testing.assert_allclose(results[2], gradient(2, 0) * 3, rtol=1e-6)


def elastic_rounds(rounds: int, workers: int = 1):
    """Weights that differ between groups are only averaged; returns weights and centre at the end of each round.

    All workers meet after each round: a group that is left alone contracts with the centre to another point.
    """
    meeting = threading.Barrier(workers, timeout=60)

    def work(algorithm: Algorithm, worker: int) -> list[tuple[np.ndarray, np.ndarray]]:
        weights, centre = Arena(LAYOUT).flat, Arena(LAYOUT).flat
        algorithm.join_weights("t", LAYOUT, Tensor([weights]))
        # All ranks of a group have the same weights, other groups other ones.
        weights[:] = 10.0 + worker
        algorithm.levels.group.broadcast_(weights)
        seen = []
        for _ in range(rounds):
            algorithm.average_("t", Tensor([weights]))
            algorithm.read_centre("t", Tensor([centre]))
            seen.append((weights.copy(), centre.copy()))
            meeting.wait()
        return seen

    return work


def test_elastic_contracts_to_one_point() -> None:
    results = run((1, 2), "elastic", elastic_rounds(200, workers=3))
    last = [result[-1] for result in results]
    for weights, centre in last:
        np.testing.assert_allclose(weights, centre, atol=1e-3)
        np.testing.assert_allclose(weights, last[0][0], atol=1e-3)


def test_an_exchange_conserves_weights_plus_centre() -> None:
    for alpha in (0.0, 0.3, 1.0):
        (seen,) = run((1,), "elastic", elastic_rounds(5), alpha=alpha)
        for weights, centre in seen:
            np.testing.assert_allclose(weights + centre, 10.0, rtol=1e-6)


def test_alpha_zero_leaves_the_groups_apart_and_one_swaps() -> None:
    (seen,) = run((1,), "elastic", elastic_rounds(2), alpha=0.0)
    assert (seen[-1][0] == 10).all()
    assert (seen[-1][1] == 0).all()
    (seen,) = run((1,), "elastic", elastic_rounds(1), alpha=1.0)
    assert (seen[0][0] == 0).all()
    assert (seen[0][1] == 10).all()


def test_distance_is_the_relative_one() -> None:
    def work(algorithm: Algorithm, worker: int) -> float:
        weights = Arena(LAYOUT).flat
        algorithm.join_weights("t", LAYOUT, Tensor([weights]))
        weights[:] = 2
        algorithm.average_("t", Tensor([weights]))
        return algorithm.distance

    assert run((1,), "elastic", work, alpha=0.5) == [pytest.approx(1.0)]


def test_alpha_is_0_9_over_the_groups_by_default() -> None:
    def alpha(algorithm: MpiESGD, worker: int) -> float:
        return algorithm.rule.alpha

    assert run((1, 1, 1), "elastic", alpha) == [pytest.approx(0.3)] * 3


@pytest.mark.parametrize("lost", ["one group", "all"])
def test_with_sync_a_group_that_comes_back_is_refused_on_all_its_ranks(lost: str) -> None:
    server, given = LocalServer(), Settings(chunk_bytes=1024)

    def joined(index: int, group: ThreadGroup) -> tuple[MpiSGD, LocalStore | None]:
        store = None
        if group.rank == 0:
            store = LocalStore(server, job="job", group=index, groups=2, settings=given)
        algorithm = MpiSGD(
            Levels(group, [0] * group.size), LeaderUplink(store, group) if store else FollowerUplink(group)
        )
        arena = Arena(LAYOUT)
        algorithm.initialise("t", LAYOUT, Tensor([arena.flat]))
        algorithm.join_gradients("t", LAYOUT)
        return algorithm, store

    def body(world: ThreadGroup) -> str:
        index, group = world.rank // 2, world.split(world.rank // 2)
        algorithm, store = joined(index, group)
        reduced(algorithm, gradient(world.rank, 0))
        world.barrier()
        if store is not None and (lost == "all" or index == 1):
            store.lose()
        world.barrier()
        said = "went on"
        if lost == "all" or index == 1:
            with pytest.raises(ServerError) as refused:
                joined(index, group)
            said = str(refused.value)
        world.barrier()  # if the last group left before that, it would take the tables with it
        algorithm.close()
        return said

    said = ThreadGroup.run(4, body)
    assert [*said[:2]] == ["went on"] * 2 or lost == "all"
    assert all("HYBRIDPS_JOB" in text for text in said[2:])
    assert len(set(said[2:])) == 1


def test_names() -> None:
    assert (MpiSGD.name, MpiESGD.name, ServerSGD.name) == ("sync", "elastic", "async")


def train_at_servers(steps: int, meeting: threading.Barrier | None = None):
    """The servers update: a step brings weights. Returns those after each step, and the centre in the end."""

    def work(algorithm: Algorithm, worker: int) -> tuple[list[np.ndarray], np.ndarray]:
        assert algorithm.updates
        weights = Arena(LAYOUT).flat
        weights[:] = start_weights(worker)
        algorithm.initialise("t", LAYOUT, Tensor([weights]))
        algorithm.join_gradients("t", LAYOUT)
        algorithm.join_weights("t", LAYOUT, Tensor([weights]))
        after = [weights.copy()]
        for step in range(steps):
            after.append(reduced(algorithm, gradient(worker, step)).copy())
        if meeting is not None:
            meeting.wait()
        algorithm.read_centre("t", Tensor([weights]))
        return after, weights

    return work


@pytest.mark.parametrize("sizes", [(1,), (2,), (1, 1), (2, 1), (1, 1, 1)])
def test_synchronous_at_the_servers_equals_one_process(sizes) -> None:
    results = run(sizes, "sync", train_at_servers(4), rule=Momentum(rate=0.25, momentum=0.5))
    weights, velocity = results[0][0][0].copy(), np.zeros(LAYOUT.length, np.float32)
    for step in range(4):
        velocity = 0.5 * velocity - ETA * sum(gradient(worker, step) for worker in range(sum(sizes)))
        weights = weights + velocity
        for after, _ in results:
            np.testing.assert_allclose(after[step + 1], weights, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("sizes", [(1, 1), (2, 2), (2, 1), (1, 1, 1)])
@pytest.mark.parametrize("clock", [FreeRunning(), BoundedStale(0), BoundedStale(2)], ids=str)
def test_asynchronous_sgd_applies_every_gradient_once(sizes, clock) -> None:
    """Plain SGD is a sum: whatever the order, the centre in the end is the start less all gradients."""
    meeting = threading.Barrier(sum(sizes), timeout=60)
    results = run(sizes, "async", train_at_servers(5, meeting), rule=SGD(rate=0.25), clock=clock)
    total = sum(gradient(worker, step) for worker in range(sum(sizes)) for step in range(5))
    for _, centre in results:
        np.testing.assert_allclose(centre, start_weights(0) - ETA * total, rtol=1e-5, atol=1e-4)


def test_bounded_stale_weights_lack_no_more_than_the_bound() -> None:
    """All gradients are ones: a weight counts how many came. After step n a group knows of all groups' n - 2."""
    groups, steps, bound = 3, 12, 2

    def work(algorithm: Algorithm, worker: int) -> list[float]:
        weights = Tensor([Arena(LAYOUT).flat])
        algorithm.join_weights("t", LAYOUT, weights)
        return [float(reduced(algorithm, np.ones(LAYOUT.length, np.float32)).min()) for _ in range(steps)]

    for seen in run((1,) * groups, "async", work, rule=SGD(rate=1.0), clock=BoundedStale(bound)):
        for step, weight in enumerate(seen, 1):
            assert -weight >= step + (groups - 1) * max(0, step - bound)
            assert -weight <= groups * steps


def test_ranks_of_an_asynchronous_group_stay_identical() -> None:
    results = run((2, 2), "async", train_at_servers(5), rule=Momentum(rate=0.1))
    for first in (0, 2):
        for mine, other in zip(results[first][0], results[first + 1][0], strict=True):
            np.testing.assert_array_equal(mine, other)


@pytest.mark.parametrize("rule", [ElasticTogether(0.3), Outer(rate=1.0, momentum=0.0)], ids=str)
def test_weights_meet_in_step(rule) -> None:
    results = run((1, 2), "elastic", elastic_rounds(60, workers=3), rule=rule)
    for seen in results:
        for weights, centre in seen[-1:]:
            np.testing.assert_allclose(weights, centre, atol=1e-3)
    if isinstance(rule, Outer):
        for weights, centre in results[0][:1]:
            np.testing.assert_array_equal(weights, centre)
            np.testing.assert_allclose(centre, (10 + 11) / 2)


def test_an_update_at_the_servers_needs_a_rule_and_a_server() -> None:
    with pytest.raises(ConfigError, match="no rule"):
        run((1, 1), "async", train_at_servers(1))
    group = SoloGroup()
    with pytest.raises(ConfigError, match="no server"):
        make_algorithm(
            "async",
            Levels(group, [0]),
            NoUplink(group),
            Settings(),
            workers=1,
            groups=1,
            has_servers=False,
            rule=SGD(rate=1.0),
        )
