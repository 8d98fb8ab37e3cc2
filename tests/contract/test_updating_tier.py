"""The ranks of a group update weights as one process would by the rule, wherever the memory lies."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from hybridps.algorithms import Algorithm, reduce_all_
from hybridps.algorithms.mpi_sgd import MpiSGD
from hybridps.errors import GroupError
from hybridps.memory import Layout
from hybridps.mpi_groups import ThreadGroup
from hybridps.ps.rules import SGD, Adam, AnyRule, Foreign, Momentum, Nesterov, apply_
from hybridps.shared_memory import create_shared
from hybridps.tensor_collectives import Levels
from hybridps.tensor_collectives.node import node
from hybridps.tiers import NoTier

LAYOUT = Layout.of("float32", {"a": (37, 5), "b": (3000,), "c": (7,)})
CUTS = (192, 3200, LAYOUT.length)
"""Where the keys of the layout end, as spans."""

RULES = [
    SGD(rate=0.1, rescale=0.25, weight_decay=1e-3),
    Momentum(rate=0.1, rescale=0.25, weight_decay=1e-3, clip=0.5),
    Nesterov(rate=0.1, rescale=0.25, weight_decay=1e-3),
    Adam(rate=0.01, rescale=0.25, weight_decay=1e-3, update=3),
]


def start(rank: int) -> np.ndarray:
    return np.random.default_rng(rank).standard_normal(LAYOUT.length).astype("float32")


def gradient(number: int, step: int) -> np.ndarray:
    """Whole numbers, so that their sum is the same in any order."""
    return np.random.default_rng([number, step]).integers(-9, 9, LAYOUT.length).astype("float32")


def rules_at(rule: AnyRule, begin: int, stop: int, step: int) -> tuple[tuple[int, AnyRule], ...]:
    """One for each key that lies in the range, each with a rate of its own."""
    cuts = [cut for cut in CUTS if cut > begin]
    ends = [*(cut for cut in cuts if cut < stop), stop]
    first = len(CUTS) - len(cuts)
    return tuple((end, type(rule)(**{**as_dict(rule), "rate": rate_of(first + n, step)})) for n, end in enumerate(ends))


def as_dict(rule: AnyRule) -> dict[str, float]:
    return {name: getattr(rule, name) for name in rule.__struct_fields__}


def rate_of(key: int, step: int) -> float:
    return 0.05 * (key + 1) / (step + 1)


def expected(rule: AnyRule, vectors: int, steps: int) -> list[np.ndarray]:
    """Weights and states of one process that has all vectors."""
    arrays = [start(0), *(np.zeros(LAYOUT.length, "float32") for _ in range(rule.states))]
    for step in range(steps):
        begin = 0
        for end, each in rules_at(rule, 0, LAYOUT.length, step):
            parts = [array[begin:end] for array in arrays]
            sources = [gradient(number, step)[begin:end] for number in range(vectors)]
            apply_(each, sources, parts[:1], parts[0], parts[1:], step=1, contributions=1)
            begin = end
    return arrays


def updating(group: ThreadGroup, rule: AnyRule, nodes: list[int] | None = None) -> Algorithm | None:
    levels = Levels(group, nodes or [0] * group.size, deadline_seconds=30)
    return MpiSGD(levels, NoTier(group)).updating(rule)


def train(group: ThreadGroup, rule: AnyRule, devices: int, steps: int, bucket: int = 1024) -> list[np.ndarray]:
    algorithm = updating(group, rule)
    assert algorithm is not None
    levels = algorithm.levels
    tensor = levels.tensor(LAYOUT.length, "float32", devices)
    receives = algorithm.keeps_gradients and devices == 1
    weights = levels.tensor(LAYOUT.length, "float32") if receives else tensor
    weights.vectors[0][:] = start(group.rank)
    algorithm.join_gradients("t", LAYOUT)
    assert not algorithm.join_weights("t", LAYOUT, weights, receives)
    for step in range(steps):
        for device, vector in enumerate(tensor.vectors):
            vector[:] = gradient(group.rank * devices + device, step)
        for begin in range(0, LAYOUT.length, bucket)[::-1]:
            stop = min(begin + bucket, LAYOUT.length)
            algorithm.finish_(algorithm.reduce_("t", tensor, begin, stop, rules_at(rule, begin, stop, step)))
    for vector in weights.vectors:
        np.testing.assert_array_equal(vector, weights.vectors[0])
    kept = algorithm.tier.pull_states("t")
    np.testing.assert_array_equal(kept[0], weights.vectors[0])
    algorithm.drop(["t"])
    levels.close()
    return kept


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
@pytest.mark.parametrize(("ranks", "devices"), [(1, 1), (2, 1), (3, 1), (4, 1), (1, 2), (3, 2)])
def test_a_group_updates_as_one_process(rule: AnyRule, ranks: int, devices: int) -> None:
    wanted = expected(rule, ranks * devices, steps=3)
    for kept in ThreadGroup.run(ranks, partial(train, rule=rule, devices=devices, steps=3)):
        for array, right in zip(kept, wanted, strict=True):
            np.testing.assert_array_equal(array, right)


@pytest.mark.parametrize("refused", range(1, 6))
def test_so_it_does_where_shared_memory_runs_out(monkeypatch: pytest.MonkeyPatch, refused: int) -> None:
    """The first array is for the ranks' meetings; then come gradients, weights, and states."""
    calls: list[int] = []

    def refuse(nbytes: int) -> np.ndarray:
        calls.append(nbytes)
        if len(calls) == refused:
            raise OSError(28, "No space left on device")
        return create_shared(nbytes)

    monkeypatch.setattr(node, "create_shared", refuse)
    for rule in RULES:
        calls.clear()
        if refused == 1:
            assert ThreadGroup.run(3, lambda group: updating(group, SGD(rate=0.1))) == [None] * 3
            return
        wanted = expected(rule, 3, steps=3)
        for kept in ThreadGroup.run(3, partial(train, rule=rule, devices=1, steps=3)):
            for array, right in zip(kept, wanted, strict=True):
                np.testing.assert_array_equal(array, right)


def test_what_is_not_finite_is_found_where_it_is_added_up_and_goes_on() -> None:
    """Each rank is told of its own, wherever the part lies; the weights are those of one process."""

    def work(group: ThreadGroup) -> tuple[int | None, np.ndarray]:
        algorithm = updating(group, SGD(rate=1.0))
        assert algorithm is not None
        levels = algorithm.levels
        assert algorithm.sums_in_group
        weights, gradients = (levels.tensor(LAYOUT.length, "float32") for _ in range(2))
        algorithm.join_weights("t", LAYOUT, weights, receives=True)
        gradients.vectors[0][:] = 1
        if group.rank == 1:
            gradients.vectors[0][[2500, 2510]] = np.nan, np.inf
        assert gradients.looks_for_not_finite(LAYOUT.length)
        algorithm.reduce_("t", gradients, 0, LAYOUT.length)
        found = gradients.first_not_finite()
        group.barrier()
        gradients.vectors[0][:] = 1
        algorithm.reduce_("t", gradients, 0, LAYOUT.length)
        assert gradients.first_not_finite() is None
        return found, weights.vectors[0]

    wanted = np.full(LAYOUT.length, -6, "float32")
    wanted[[2500, 2510]] = np.nan  # after Inf too, as 0 weight decay times Inf is NaN
    for rank, (found, weights) in enumerate(ThreadGroup.run(3, work)):
        assert found == (2500 if rank == 1 else None)
        np.testing.assert_array_equal(weights, wanted)


def test_the_first_rank_gives_all_others_weights_and_states() -> None:
    def work(group: ThreadGroup) -> list[np.ndarray]:
        algorithm = updating(group, Momentum(rate=0.5, momentum=0.5))
        assert algorithm is not None
        levels = algorithm.levels
        weights, gradients = (levels.tensor(LAYOUT.length, "float32") for _ in range(2))
        algorithm.join_weights("t", LAYOUT, weights, receives=True)
        given = (8, 4) if group.rank == 0 else (5, 5)
        full = {number: np.full(LAYOUT.length, value, "float32") for number, value in enumerate(given)}
        algorithm.tier.put_states("t", full)
        group.barrier()
        assert (weights.vectors[0] == 8).all()
        reduce_all_(algorithm, "t", gradients, 1024)
        assert (weights.vectors[0] == 10).all()
        return algorithm.tier.pull_states("t")

    for kept in ThreadGroup.run(3, work):
        assert (kept[0] == 10).all()
        assert (kept[1] == 2).all()


def test_ranks_that_update_differently_are_told() -> None:
    def work(group: ThreadGroup) -> None:
        algorithm = updating(group, SGD(rate=0.5))
        assert algorithm is not None
        levels = algorithm.levels
        weights, gradients = (levels.tensor(LAYOUT.length, "float32") for _ in range(2))
        algorithm.join_weights("t", LAYOUT, weights, receives=True)
        rules = ((LAYOUT.length, SGD(rate=0.5 if group.rank < 2 else 0.25)),)
        rate = rules[0][1].rate
        with pytest.raises(
            GroupError, match=rf"with different numbers, this one with SGD\(rate={rate}.*same learning rate"
        ):
            algorithm.reduce_("t", gradients, 0, LAYOUT.length, rules)
        assert not weights.vectors[0].any()

    ThreadGroup.run(3, work)


@pytest.mark.parametrize("shares", [True, False])
def test_ranks_with_different_rules_are_told_before_they_begin(monkeypatch: pytest.MonkeyPatch, shares: bool) -> None:
    if not shares:
        monkeypatch.setattr(Levels, "shared", lambda *about: None)

    def work(group: ThreadGroup) -> None:
        rule = Momentum(rate=0.5) if group.rank else SGD(rate=0.5)
        algorithm = updating(group, rule)
        assert algorithm is not None
        levels = algorithm.levels
        with pytest.raises(GroupError, match=f"with different numbers, this one with {type(rule).__name__}"):
            algorithm.join_weights("t", LAYOUT, levels.tensor(LAYOUT.length, "float32"), receives=True)

    ThreadGroup.run(3, work)


def test_what_only_servers_can_do_stays_with_the_workers() -> None:
    def work(group: ThreadGroup, nodes: list[int], rule: AnyRule) -> None:
        assert updating(group, rule, nodes) is None

    ThreadGroup.run(2, partial(work, nodes=[0, 1], rule=SGD(rate=0.1)))
    ThreadGroup.run(2, partial(work, nodes=[0, 0], rule=Foreign(framework="mxnet", optimizer="ftrl")))
