"""Groups that gossip over real sockets: what is conserved, who is waited for, and what becomes of what is lost."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from gossiping import LAYOUT, SECONDS, SETTINGS, TABLE, Circle, circle, exchange_of, settle, start_weights

from hybridps.errors import DeadlineError, LayoutError
from hybridps.gossip import Exchange, Partners, Partnership, PushExchange
from hybridps.memory import Layout
from hybridps.ps.rules.finite import NotFiniteError

pytestmark = pytest.mark.timeout(60)

WHOLE = [(0, LAYOUT.length)]
SYMMETRIC, PULL, PUSH = (Partnership(kind, "random", seed=5) for kind in ("symmetric", "pull", "push"))


def gossip(exchanges: list[Exchange], weights: list[np.ndarray], turns: int) -> None:
    """Each group in its turn takes in and sends. What is under way at the end is taken in."""
    for _ in range(turns):
        for exchange, own in zip(exchanges, weights, strict=True):
            exchange.take_in(own)
            exchange.begin(own, WHOLE)
        exchanges[0]._partners.until(lambda: False, 0.002)
    settle(exchanges, weights)


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("topology", ["random", "ring", "exponential", "regular", "complete"])
def test_the_symmetric_average_conserves_the_sum_and_contracts(size: int, topology: str) -> None:
    layout = Layout.of("float64", {"a": (300,)})
    with circle(size) as groups:
        partnership = Partnership("symmetric", topology)
        exchanges = [exchange_of(groups.there[rank], partnership, layout) for rank in range(size)]
        weights = start_weights(size, layout)
        total, spread = np.sum(weights, 0), np.ptp(weights, axis=0).max()
        for _ in range(30 * size):
            for exchange, own in zip(exchanges, weights, strict=True):
                exchange.take_in(own)
                exchange.begin(own, [(0, layout.length)])
            exchanges[0]._partners.until(lambda: False, 0.001)
        settle(exchanges, weights)
        np.testing.assert_allclose(np.sum(weights, 0), total, atol=1e-12)
        assert np.ptp(weights, axis=0).max() < 1e-3 * spread
        assert all(exchange.distance < 1e-3 for exchange in exchanges)
        assert [partners.refused for partners in groups.there.values()] == [0] * size


def test_groups_that_ask_each_other_at_the_same_time_do_not_swap() -> None:
    with circle(2) as groups:
        exchanges = [exchange_of(groups.there[rank], SYMMETRIC) for rank in range(2)]
        weights = start_weights(2)
        difference = weights[0] - weights[1]
        for exchange, own in zip(exchanges, weights, strict=True):
            exchange.begin(own, WHOLE)
        settle(exchanges, weights)
        np.testing.assert_allclose(weights[0] - weights[1], -difference / 3, atol=1e-6)


def test_one_exchange_is_the_mean_of_both_and_parts_leave_the_rest_alone() -> None:
    with circle(2) as groups:
        exchanges = [exchange_of(groups.there[rank], SYMMETRIC) for rank in range(2)]
        weights = start_weights(2)
        before = [own.copy() for own in weights]
        assert exchanges[0].begin(weights[0], [(64, 128)]) == 64 * 4
        settle(exchanges, weights)
        mean = (before[0] + before[1]) / 2
        for own, old in zip(weights, before, strict=True):
            np.testing.assert_allclose(own[64:128], mean[64:128], atol=1e-6)
            np.testing.assert_array_equal(np.delete(own, range(64, 128)), np.delete(old, range(64, 128)))


def test_pull_changes_the_one_that_asks_alone() -> None:
    with circle(2) as groups:
        exchanges = [exchange_of(groups.there[rank], PULL) for rank in range(2)]
        weights = start_weights(2)
        before = [own.copy() for own in weights]
        assert exchanges[0].begin(weights[0], WHOLE) == 0
        settle(exchanges, weights)
        np.testing.assert_allclose(weights[0], (before[0] + before[1]) / 2, atol=1e-6)
        np.testing.assert_array_equal(weights[1], before[1])
        assert groups.there[1].bytes_sent == LAYOUT.nbytes


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("topology", ["random", "exponential", "complete"])
def test_push_conserves_the_shares_and_the_weighted_sum(size: int, topology: str) -> None:
    with circle(size) as groups:
        partnership = Partnership("push", topology)
        exchanges = [exchange_of(groups.there[rank], partnership) for rank in range(size)]
        weights = start_weights(size)
        mean = np.mean(weights, 0)
        gossip(exchanges, weights, 40)
        shares = [exchange.shares for exchange in exchanges if isinstance(exchange, PushExchange)]
        assert sum(share.own for share in shares) == pytest.approx(1, abs=1e-12)
        assert all(share.own > 0 and share.under_way == 0 == share.owed for share in shares)
        weighted = sum(share.own * own for share, own in zip(shares, weights, strict=True))
        np.testing.assert_allclose(weighted, mean, atol=2e-5)
        assert np.ptp(weights, axis=0).max() < 0.1


def test_nothing_due_is_independent() -> None:
    with circle(2) as groups:
        exchanges = [exchange_of(groups.there[rank], SYMMETRIC) for rank in range(2)]
        weights = start_weights(2)
        before = [own.copy() for own in weights]
        for exchange, own in zip(exchanges, weights, strict=True):
            assert not exchange.take_in(own)
            assert exchange.begin(own, []) == 0
        np.testing.assert_array_equal(weights, before)
        assert groups.there[0].bytes_sent == groups.there[1].bytes_sent == 0


def test_a_partner_that_does_not_take_in_is_asked_once_and_others_go_on() -> None:
    with circle(3) as groups:
        exchanges = [exchange_of(groups.there[rank], Partnership("push", "random")) for rank in range(3)]
        weights = start_weights(3)
        for _ in range(50):
            for rank in (0, 1):
                exchanges[rank].take_in(weights[rank])
                exchanges[rank].begin(weights[rank], WHOLE)
            groups.there[0].until(lambda: False, 0.001)
        settle_two = [exchange.shares for exchange in exchanges]  # type: ignore[attr-defined]
        assert len(groups.there[2]._inboxes[TABLE].letters) == 2
        assert 0 < settle_two[0].under_way < 1 / 2
        settle(exchanges, weights)
        assert sum(share.own for share in settle_two) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("partnership", [SYMMETRIC, PULL, PUSH])
def test_a_group_that_comes_late_takes_the_weights_over(partnership: Partnership) -> None:
    with circle(3) as groups:
        exchanges = [exchange_of(groups.there[rank], partnership) for rank in range(2)]
        weights = start_weights(3)
        gossip(exchanges, weights[:2], 10)
        exchanges.append(exchange_of(groups.there[2], partnership))
        assert exchanges[2].late
        before = [own.copy() for own in weights]
        exchanges[2].begin(weights[2], WHOLE)
        settle(exchanges, weights)
        assert not exchanges[2].late
        assert any((weights[2] == own).all() for own in before[:2])
        np.testing.assert_array_equal(weights[:2], before[:2])
        gossip(exchanges, weights, 20)
        assert np.ptp(weights, axis=0).max() < 0.5


@pytest.mark.parametrize("says_so", [True, False])
@pytest.mark.parametrize("partnership", [SYMMETRIC, PUSH])
def test_a_group_that_comes_again_takes_the_weights_over(
    tmp_path: Path, partnership: Partnership, says_so: bool
) -> None:
    with circle(2, folder=tmp_path) as groups:
        exchanges = [exchange_of(groups.there[rank], partnership) for rank in range(2)]
        weights = start_weights(2)
        gossip(exchanges, weights, 5)
        groups.end(0, says_so)
        exchanges[0] = exchange_of(groups.open(0), partnership)
        groups.wait_until_all_know_each_other()
        weights[0][:] = 7
        before = weights[1].copy()
        for _ in range(2):
            exchanges[0].begin(weights[0], WHOLE)
            settle(exchanges, weights)
        np.testing.assert_array_equal(weights[1], before)
        np.testing.assert_array_equal(weights[0], before)


def test_a_group_that_ends_gives_back_what_it_was_sent() -> None:
    with circle(2) as groups:
        exchanges = [exchange_of(groups.there[rank], PUSH) for rank in range(2)]
        weights = start_weights(2)
        before = weights[0].copy()
        exchanges[0].begin(weights[0], WHOLE)
        assert exchanges[0].shares.own == 1 / 4  # type: ignore[attr-defined]
        assert groups.there[1].until(lambda: bool(groups.there[1]._inboxes[TABLE].letters), SECONDS)
        groups.end(1)
        settle(exchanges[:1], weights[:1])
        assert exchanges[0].shares.own == 1 / 2  # type: ignore[attr-defined]
        assert groups.there[0].until(lambda: not groups.there[0].peers.is_there(1), SECONDS)
        exchanges[0].begin(weights[0], WHOLE)
        assert exchanges[0].is_quiet
        np.testing.assert_array_equal(weights[0], before)


def test_what_a_killed_group_was_sent_is_taken_back() -> None:
    with circle(3) as groups:
        partnership = Partnership("push", "ring")
        exchanges = [exchange_of(groups.there[rank], partnership) for rank in range(3)]
        weights = start_weights(3)
        exchanges[0].begin(weights[0], WHOLE)
        groups.end(1, says_so=False)
        settle([exchanges[0], exchanges[2]], [weights[0], weights[2]])
        assert exchanges[0].shares.own == pytest.approx(1 / 3)  # type: ignore[attr-defined]
        assert not groups.there[0].peers.is_there(1)


def test_initial_values_are_those_of_the_first_group() -> None:
    with circle(3) as groups:
        values = start_weights(3)
        expected = values[0].copy()
        threads = [
            threading.Thread(target=groups.there[rank].tables.share, args=("initial", LAYOUT, values[rank]))
            for rank in (2, 1, 0)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SECONDS)
            assert not thread.is_alive()
        np.testing.assert_array_equal(values, [expected] * 3)
        # All have them: who asks again keeps its own.
        own = values[1].copy() + 1
        assert not groups.there[1].tables.share("initial", LAYOUT, own)
        np.testing.assert_array_equal(own, expected + 1)


def test_the_lowest_group_that_is_there_begins_when_the_first_one_does_not_come() -> None:
    settings = type(SETTINGS)(lost_seconds=0.3, deadline_seconds=10.0)
    groups = Circle(3, settings)
    try:
        values = start_weights(3)
        for rank in (1, 2):
            groups.open(rank)
        other = threading.Thread(target=groups.there[2].tables.share, args=("initial", LAYOUT, values[2]))
        other.start()
        assert groups.there[1].tables.share("initial", LAYOUT, values[1])
        other.join(SECONDS)
        np.testing.assert_array_equal(values[2], values[1])
    finally:
        for rank in (1, 2):
            groups.end(rank)


def test_a_first_group_that_does_other_things_is_named_at_the_deadline() -> None:
    with circle(2, type(SETTINGS)(lost_seconds=5.0, deadline_seconds=0.5)) as groups:
        said = "group 0 has not registered table 'weights' within 0.5 s"
        with pytest.raises(DeadlineError, match=said):
            exchange_of(groups.there[1], SYMMETRIC)


def test_layouts_and_settings_are_compared() -> None:
    with circle(2) as groups:
        exchange_of(groups.there[0], SYMMETRIC)
        other = Layout.of("float32", {"a": (37, 5), "b": (301,)})
        said = r"group 1 registers another layout of table 'weights' than group 0: key 'b' has the shape \(301,\)"
        with pytest.raises(LayoutError, match=said):
            exchange_of(groups.there[1], SYMMETRIC, other)
        with pytest.raises(LayoutError, match="group 1 gossips by .*pull.*, and group 0 by .*symmetric"):
            exchange_of(groups.there[1], PULL)


def test_weights_that_are_not_finite_are_not_sent_and_not_taken_in() -> None:
    with circle(2) as groups:
        exchanges = [exchange_of(groups.there[rank], SYMMETRIC) for rank in range(2)]
        weights = start_weights(2)
        before = weights[0].copy()
        bad = weights[1].copy()
        bad[3] = np.nan
        with pytest.raises(NotFiniteError, match="table 'weights' of this group were refused: element 3 is nan"):
            exchanges[1].begin(bad, WHOLE)
        groups.there[1].post(0, "offer", TABLE, bad, number=1, start=0, stop=bad.size)
        groups.there[1].post(0, "push", TABLE, bad, number=2, start=0, stop=bad.size, share=0.5)
        inbox = groups.there[1]._inboxes[TABLE].letters

        def both_are_declined() -> bool:
            exchanges[0].take_in(weights[0])
            return [waits.letter.kind for waits in inbox] == ["decline", "decline"]

        assert groups.there[0].until(both_are_declined, SECONDS)
        np.testing.assert_array_equal(weights[0], before)


def test_the_barrier_waits_for_all_but_those_that_have_ended() -> None:
    with circle(3) as groups:
        passed: list[int] = []
        groups.end(1)

        def meet(partners: Partners) -> None:
            partners.meet()
            passed.append(partners.rank)

        thread = threading.Thread(target=meet, args=(groups.there[2],))
        thread.start()
        others = groups.there[0]
        assert others.until(lambda: others.peers[2].arrived == 1, SECONDS)
        assert passed == []
        others.meet()
        thread.join(SECONDS)
        assert passed == [2]


def test_a_barrier_that_a_group_does_not_come_to_ends_with_its_name() -> None:
    with (
        circle(2, type(SETTINGS)(lost_seconds=5.0, deadline_seconds=0.4)) as groups,
        pytest.raises(DeadlineError, match=r"group 0 waited 0.4 s at a barrier, because group 1 has not reached it"),
    ):
        groups.there[0].meet()
