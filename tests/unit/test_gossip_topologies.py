"""Topologies: all groups are connected over a period, and what the mixing matrices conserve."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridps.errors import ConfigError
from hybridps.gossip import PartnerChoice, Partnership, Topology, parse

NAMES = ["random", "ring", "exponential", "regular", "complete"]
SIZES = st.integers(1, 24)


@pytest.mark.parametrize("name", NAMES)
@given(size=SIZES, seed=st.integers(0, 1 << 40), step=st.integers(0, 1 << 40))
@settings(max_examples=60, deadline=None)
def test_peers_are_other_groups_once_each(name: str, size: int, seed: int, step: int) -> None:
    topology = Topology(name, seed)
    for rank in range(size):
        peers = topology.peers(step, rank, size)
        assert bool(peers) == (size > 1)
        assert set(peers) <= set(range(size)) - {rank}
        assert len(set(peers)) == len(peers)
        assert peers == topology.peers(step, rank, size)
        assert set(peers) <= set(topology.neighbours(rank, size))


@pytest.mark.parametrize("name", NAMES)
@given(size=SIZES, seed=st.integers(0, 1 << 40), start=st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_all_groups_are_connected_over_a_period(name: str, size: int, seed: int, start: int) -> None:
    """From each group, messages of some steps reach each other one: a power of the graph's matrix has no zero."""
    topology = Topology(name, seed)
    graph = sum(topology.mixing(step, size) for step in range(start, start + topology.period(size)))
    assert (np.linalg.matrix_power(graph / graph.sum(0), size) > 0).all()


@pytest.mark.parametrize("name", NAMES)
@given(size=SIZES, seed=st.integers(0, 1 << 40), step=st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_mixing_conserves_the_sum_and_all_but_random_the_mean(name: str, size: int, seed: int, step: int) -> None:
    matrix = Topology(name, seed).mixing(step, size)
    assert (matrix >= 0).all()
    np.testing.assert_allclose(matrix.sum(0), 1, rtol=1e-12)
    if name != "random":
        np.testing.assert_allclose(matrix.sum(1), 1, rtol=1e-12)


@pytest.mark.parametrize("name", ["ring", "exponential", "regular", "complete"])
@pytest.mark.parametrize("size", [2, 3, 4, 7])
def test_a_period_repeats(name: str, size: int) -> None:
    topology = Topology(name, 3)
    for step in range(10):
        for rank in range(size):
            assert topology.peers(step, rank, size) == topology.peers(step + topology.period(size), rank, size)


def test_random_peers_are_chosen_alike_often_and_differ_by_seed() -> None:
    size, steps = 5, 4000
    for rank in range(size):
        chosen = [Topology("random", 1).peers(step, rank, size)[0] for step in range(steps)]
        counts = np.bincount(chosen, minlength=size)
        assert counts[rank] == 0
        assert (abs(np.delete(counts, rank) - steps / 4) < 150).all()
    of_seeds = [[Topology("random", seed).peers(step, 0, 9) for step in range(20)] for seed in (1, 2)]
    assert of_seeds[0] != of_seeds[1]


def test_exponential_averages_exactly_over_a_period_of_a_power_of_two() -> None:
    """Assran et al., 2019: the product of the matrices of a period is the mean."""
    topology = Topology("exponential")
    product = np.linalg.multi_dot([topology.mixing(step, 8) for step in range(topology.period(8))])
    np.testing.assert_allclose(product, 1 / 8, rtol=1e-12)


@pytest.mark.parametrize(
    ("text", "said"), [("rnig", "did you mean 'ring'"), ("ring:x", "write ring:SEED"), ("ring:", "write ring:SEED")]
)
def test_what_is_no_topology_is_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse(text)


def test_a_partner_that_may_not_be_chosen_is_passed_over() -> None:
    choice = PartnerChoice(Partnership("symmetric", "ring"), 0, 5)
    assert [choice.next(lambda peer: peer != 1, {}.get) for _ in range(3)] == [(4,)] * 3
    assert choice.next(lambda peer: False, {}.get) == ()


def test_fast_partners_are_chosen_more_often_and_slow_ones_not_never() -> None:
    choice = PartnerChoice(Partnership("symmetric", "complete", by_speed=True), 0, 4)
    seconds = {1: 0.01, 2: 0.02, 3: 10.0}
    counts = np.bincount([choice.next(lambda peer: True, seconds.get)[0] for _ in range(3200)], minlength=4)
    assert counts[0] == 0
    np.testing.assert_allclose(counts[1:] / 3200, np.array([1, 0.5, 0.1]) / 1.6, atol=0.04)
