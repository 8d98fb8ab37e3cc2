"""The algorithms over ranks that are threads and a real server: their limits and what they conserve."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest
from algorithm_groups import LAYOUT, SETTINGS_GIVEN, Groups, group_of, reduced, run
from in_thread import in_thread

from hybridps.algorithms import Algorithm, MpiSGD, choose_row, make_algorithm, reduce_all_
from hybridps.config import Settings
from hybridps.errors import ConfigError, LayoutError, ServerError
from hybridps.memory import Arena, Layout
from hybridps.mpi_groups import ThreadGroup
from hybridps.ps.client import Client
from hybridps.ps.clocks import BoundedStale, BulkSynchronous, Clock, FreeRunning
from hybridps.ps.rules import SGD, Elastic, ElasticTogether, Mean, Momentum, Outer, Rule, Sum
from hybridps.ps.server import Server
from hybridps.tensor_collectives import Levels, Tensor

pytestmark = pytest.mark.timeout(60)

ETA = np.float32(0.25)


@pytest.fixture(scope="module", autouse=True)
def server() -> Iterator[Server]:
    """One server for all jobs of this module."""
    with in_thread(Server("tcp://127.0.0.1:*", threads=2)) as running:
        Groups.server = running
        yield running


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
                algorithm.average_("t", weights, step)
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


@pytest.mark.parametrize("wire", ["exact", "float16"])
@pytest.mark.parametrize("sizes", [(1, 1), (2, 1), (3,)])
def test_servers_that_update_leave_gradients_alone(sizes: tuple[int, ...], wire: str) -> None:
    """In memory that servers work in, and where values are sent."""

    def work(algorithm: Algorithm, worker: int) -> None:
        assert algorithm.keeps_gradients
        weights, gradients = (algorithm.levels.tensor(LAYOUT.length, "float32") for _ in range(2))
        weights.vectors[0][:] = 8
        algorithm.join_gradients("t", LAYOUT)
        algorithm.join_weights("t", LAYOUT, weights, receives=True)
        for step in range(3):
            gradients.vectors[0][:] = gradient(worker, step)
            reduce_all_(algorithm, "t", gradients, 256)
            np.testing.assert_array_equal(gradients.vectors[0], gradient(worker, step))
        sums = [gradient(other, step) for other in range(sum(sizes)) for step in range(3)]
        np.testing.assert_array_equal(weights.vectors[0], 8 - ETA * np.sum(sums, axis=0))

    run(sizes, "async", work, rule=SGD(rate=float(ETA)), clock=BulkSynchronous(), wire=wire)


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
        for step in range(1, rounds + 1):
            algorithm.average_("t", Tensor([weights]), step)
            algorithm.read_centre("t", Tensor([centre]))
            seen.append((weights.copy(), centre.copy()))
            meeting.wait()
        return seen

    return work


def test_elastic_contracts_to_one_point() -> None:
    results = run((1, 2), "elastic", elastic_rounds(200, workers=3), tau=1)
    last = [result[-1] for result in results]
    for weights, centre in last:
        np.testing.assert_allclose(weights, centre, atol=1e-3)
        np.testing.assert_allclose(weights, last[0][0], atol=1e-3)


def test_an_exchange_conserves_weights_plus_centre() -> None:
    for alpha in (0.0, 0.3, 1.0):
        (seen,) = run((1,), "elastic", elastic_rounds(5), tau=1, alpha=alpha)
        for weights, centre in seen:
            np.testing.assert_allclose(weights + centre, 10.0, rtol=1e-6)


def test_alpha_zero_leaves_the_groups_apart_and_one_swaps() -> None:
    (seen,) = run((1,), "elastic", elastic_rounds(2), tau=1, alpha=0.0)
    assert (seen[-1][0] == 10).all()
    assert (seen[-1][1] == 0).all()
    (seen,) = run((1,), "elastic", elastic_rounds(1), tau=1, alpha=1.0)
    assert (seen[0][0] == 0).all()
    assert (seen[0][1] == 10).all()


def test_distance_is_the_relative_one() -> None:
    def work(algorithm: Algorithm, worker: int) -> float:
        weights = Arena(LAYOUT).flat
        algorithm.join_weights("t", LAYOUT, Tensor([weights]))
        weights[:] = 2
        algorithm.average_("t", Tensor([weights]), 10)
        return algorithm.distance

    assert run((1,), "elastic", work, alpha=0.5) == [pytest.approx(1.0)]
    assert run((1,), "easgd", work, alpha=0.5) == [pytest.approx(1.0)]
    # The centre that the outer optimizer makes of 0 and 2 is 0.5 * (1 + 0.5) * 2 = 1.5.
    assert run((1,), "diloco", work, outer_rate=0.5, outer_momentum=0.5) == [pytest.approx(0.25)]
    assert run((1,), "local", work) == [0.0]


def test_alpha_is_0_9_over_the_groups_by_default() -> None:
    def alpha(algorithm: Algorithm, worker: int) -> float:
        return algorithm.row.rule.alpha

    assert run((1, 1, 1), "elastic", alpha) == [pytest.approx(0.3)] * 3


@pytest.mark.parametrize("lost", ["one group", "all"])
def test_with_sync_a_group_that_comes_back_is_refused_on_all_its_ranks(lost: str) -> None:
    groups = Groups((2, 2), True, Settings(**SETTINGS_GIVEN, heartbeat_seconds=0.1))

    def joined(levels: Levels, store: Client | None) -> None:
        algorithm = MpiSGD(levels, groups.tier(levels, store))
        arena = Arena(LAYOUT)
        algorithm.initialise("t", LAYOUT, Tensor([arena.flat]))
        algorithm.join_gradients("t", LAYOUT)
        reduced(algorithm, gradient(0, 0))

    def body(world: ThreadGroup) -> str:
        levels, store = groups.open(world)
        joined(levels, store)
        world.barrier()
        again = lost == "all" or group_of(world.rank, groups.sizes) == 1
        if store is not None and again:
            store.close(lost=True)
        world.barrier()
        said = "went on"
        if again:
            store = groups.connect(group_of(world.rank, groups.sizes)) if store is not None else None
            with pytest.raises(ServerError) as refused:
                joined(levels, store)
            said = str(refused.value)
        world.barrier()  # if the last group left before that, it would take the tables with it
        if store is not None:
            store.close()
        return said

    # A group can come back when the server has missed it for `lost_seconds`.
    with in_thread(Server("tcp://127.0.0.1:*", threads=2, lost_seconds=1.0)) as server:
        groups.addresses = [server.address]
        said = ThreadGroup.run(4, body)
    assert [*said[:2]] == ["went on"] * 2 or lost == "all"
    assert all("HYBRIDPS_JOB" in text for text in said[2:])
    assert len(set(said[2:])) == 1


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
    results = run((1, 2), "elastic", elastic_rounds(60, workers=3), tau=1, rule=rule)
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
    with pytest.raises(ConfigError, match="no server"):
        choose_row("async", Settings(), 1, False, SGD(rate=1.0), None)


@pytest.mark.parametrize(
    ("name", "rule", "clock", "said"),
    [
        ("elastic", None, BulkSynchronous(), "clock BulkSynchronous.* no meaning with the rule Elastic.*FreeRunning"),
        ("elastic", None, BoundedStale(2), "clock BoundedStale.* no meaning with the rule Elastic"),
        ("elastic", ElasticTogether(0.3), FreeRunning(), "no meaning with the rule ElasticTogether"),
        ("elastic", SGD(rate=1.0), None, "rule SGD has no meaning with the algorithm 'elastic': use one of Elastic"),
        ("sync", None, FreeRunning(), "no meaning with the rule Sum of the algorithm 'sync': use BulkSynchronous"),
        ("async", Elastic(0.5), None, "rule Elastic has no meaning with the algorithm 'async': use one of SGD"),
        ("async", SGD(rate=float("nan")), None, "SGD has rate=nan"),
        ("async", SGD(rate=-1.0), None, r"SGD\(rate=-1.0.* >= 0.0"),
        ("async", SGD(rate=1.0), BoundedStale(-1), r"BoundedStale\(bound=-1\) cannot be used"),
        ("elastic", Elastic(2.0), None, "Elastic.* <= 1.0"),
    ],
)
def test_what_has_no_meaning_is_refused_by_name(name: str, rule: Rule | None, clock: Clock | None, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        choose_row(name, Settings(), 2, True, rule, clock)


def test_a_clock_is_honoured() -> None:
    for name, rule, clock in (
        ("elastic", Outer(), BoundedStale(3)),
        ("elastic", Mean(), BulkSynchronous()),
        ("async", SGD(rate=1.0), BoundedStale(1)),
        ("sync", SGD(rate=1.0), FreeRunning()),
        ("sync", None, BulkSynchronous()),
    ):
        row = choose_row(name, Settings(), 2, True, rule, clock)
        assert (row.rule, row.clock) == (rule or Sum(), clock)


def two_tensors(levels: Levels, worker: int) -> list[Tensor]:
    """Gradients in memories of their own, filled with the worker's number plus 1, and 10 times that."""
    tensors = [levels.tensor(LAYOUT.length, "float32") for _ in range(2)]
    for tensor, factor in zip(tensors, (1, 10), strict=True):
        tensor.vectors[0][:] = factor * (worker + 1)
    return tensors


def test_memory_that_a_server_refuses_is_summed_in_the_group_on_all_ranks(monkeypatch) -> None:
    """The servers work in the first memory of a group only: the ranks agree on that for each memory."""
    monkeypatch.setattr("hybridps.ps.server.requests.MOST_REGIONS", 1)

    def work(algorithm: Algorithm, worker: int) -> list[float]:
        first, second = two_tensors(algorithm.levels, worker)
        algorithm.join_gradients("t", LAYOUT)
        sums = []
        for tensor in (first, second, first, second):
            before = tensor.vectors[0][0]
            algorithm.finish_(algorithm.reduce_("t", tensor, 0, LAYOUT.length))
            sums.append((before, set(tensor.vectors[0])))
        assert list(algorithm.tier._reached.values()) == [True, False]
        return sums

    # 1 + 2 + 3 + 4 = 10; what came of that goes in again, as 10 of each of the 4 workers.
    for worker, sums in enumerate(run((2, 2), "sync", work)):
        assert sums == [(worker + 1, {10}), (10 * (worker + 1), {100}), (10, {40}), (100, {400})]


@pytest.mark.parametrize("sizes", [(1, 1), (2, 1), (2, 2, 1)])
@pytest.mark.parametrize("rule", [None, SGD(rate=1.0)], ids=["sums", "weights"])
def test_groups_reduce_spans_of_their_own(sizes, rule: Rule | None) -> None:
    """One group reduces key by key, another one in runs of chunks, the last one everything at once."""
    length = LAYOUT.length
    edges = ((0, 185, 492, length), (0, 256, length), (0, length))

    def work(algorithm: Algorithm, worker: int) -> np.ndarray:
        group = next(g for g in range(len(sizes)) if worker < sum(sizes[: g + 1]))
        weights, gradients = (algorithm.levels.tensor(length, "float32") for _ in range(2))
        algorithm.join_gradients("t", LAYOUT)
        algorithm.join_weights("t", LAYOUT, weights)
        for step in range(3):
            gradients.vectors[0][:] = gradient(worker, step)
            spans = list(zip(edges[group], edges[group][1:], strict=False))
            begun = []
            for start, stop in spans[::-1] if step else spans:
                begun.append(algorithm.reduce_("t", gradients, start, stop))
                begun.append(algorithm.reduce_("t", gradients, stop, stop))
            for exchange in begun[::-1] if step == 1 else begun:
                algorithm.finish_(exchange)
        return gradients.vectors[0].copy()

    workers, steps = range(sum(sizes)), (0, 1, 2) if rule else (2,)
    total = sum(gradient(worker, step) for worker in workers for step in steps)
    for found in run(sizes, "sync", work, rule=rule):
        np.testing.assert_array_equal(found, -total if rule else total)


def test_a_group_gets_the_initial_values_though_the_first_one_has_dropped_them() -> None:
    groups = Groups((1, 1), True, Settings(**SETTINGS_GIVEN))

    def body(world: ThreadGroup) -> float:
        group = world.split(world.rank)
        levels = Levels(group, [0])
        if world.rank == 1:
            world.barrier()
        store = groups.connect(world.rank)
        algorithm = MpiSGD(levels, groups.tier(levels, store))
        values = Tensor([Arena(LAYOUT).flat])
        values.vectors[0][:] = world.rank + 1
        algorithm.initialise("t", LAYOUT, values)
        if world.rank == 0:
            world.barrier()
        world.barrier()
        store.close()
        return values.vectors[0][-1]

    assert ThreadGroup.run(2, body) == [1, 1]


def test_algorithms_on_one_connection_have_tables_of_their_own() -> None:
    groups = Groups((2, 1), True, Settings(**SETTINGS_GIVEN))

    def body(world: ThreadGroup) -> list[np.ndarray]:
        levels, store = groups.open(world)
        one, other = (MpiSGD(levels, groups.tier(levels, store, prefix)) for prefix in ("0/", "1/"))
        tensors = two_tensors(levels, world.rank)
        for algorithm in (one, other):
            algorithm.join_gradients("t", LAYOUT)
        first, second = (
            algorithm.reduce_("t", tensor, 0, LAYOUT.length)
            for algorithm, tensor in zip((one, other), tensors, strict=True)
        )
        other.finish_(second)  # begun after the other
        one.finish_(first)
        one.close()
        other.finish_(other.reduce_("t", tensors[1], 0, LAYOUT.length))
        world.barrier()
        if store is not None:
            store.close()
        return [set(tensor.vectors[0]) for tensor in tensors]

    assert ThreadGroup.run(3, body) == [[{6}, {180}]] * 3


@pytest.mark.parametrize("name", ["sync", "elastic"])
@pytest.mark.parametrize("sizes", [(2,), (2, 1)])
def test_layouts_that_differ_inside_a_group_are_refused_on_all_its_ranks(sizes, name: str) -> None:
    def work(algorithm: Algorithm, worker: int) -> str:
        if worker > 1:
            return ""
        layout = Layout.of("float32", {"a": (37, 5), "b": (300 + worker,)})
        with pytest.raises(LayoutError, match=r"key 'b' has the shape \(301,\) instead of \(300,\)") as refused:
            algorithm.join_gradients("t", layout)
        with pytest.raises(LayoutError, match="key 'b'"):
            algorithm.initialise("t", layout, Tensor([Arena(layout).flat]))
        return str(refused.value)

    first, second, *_ = run(sizes, name, work)
    assert first == second


@pytest.mark.parametrize("sizes", [(1,), (2,), (2, 1), (1, 1, 1)])
@pytest.mark.parametrize("name", ["sync", "elastic"])
def test_a_barrier_returns_when_all_workers_of_all_groups_have_come(sizes, name: str) -> None:
    lock, came = threading.Lock(), []

    def work(algorithm: Algorithm, worker: int) -> None:
        for meeting in range(3):
            with lock:
                came.append((meeting, worker))
            algorithm.barrier()
            with lock:
                assert sum(each == meeting for each, _ in came) == sum(sizes)

    run(sizes, name, work)


def test_a_group_that_comes_after_all_have_the_initial_values_keeps_its_own() -> None:
    """Then it takes the centre. All groups have dropped the initial values, and so the servers have freed them."""
    groups = Groups((1, 1), True, Settings(**SETTINGS_GIVEN, heartbeat_seconds=0.1))

    def joined(levels: Levels, store: Client, value: float) -> tuple[float, float, bool]:
        """The weights once they are initialised, those once they are registered, and whether the group was late."""
        row = choose_row("elastic", Settings(), 2, True, None, None)
        algorithm = make_algorithm(row, levels, groups.tier(levels, store), workers=2)
        weights = Tensor([Arena(LAYOUT).flat])
        weights.vectors[0][:] = value
        algorithm.initialise("t", LAYOUT, weights)
        initial = weights.vectors[0][0]
        late = algorithm.join_weights("t", LAYOUT, weights)
        return initial, weights.vectors[0][0], late

    def body(world: ThreadGroup) -> list[tuple[float, float, bool]]:
        levels, store = groups.open(world)
        seen = [joined(levels, store, world.rank)]
        world.barrier()
        if world.rank == 1:
            store.close(lost=True)
            store = groups.connect(1)
            seen.append(joined(levels, store, 11))
        world.barrier()
        store.close()
        return seen

    with in_thread(Server("tcp://127.0.0.1:*", threads=2, lost_seconds=1.0)) as server:
        groups.addresses = [server.address]
        ((first, taken, _),), ((second, also, _), again) = ThreadGroup.run(2, body)
    assert first == second == taken == also
    assert again == (11, first, True)
