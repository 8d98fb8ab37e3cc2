"""Groups that gossip at paces of their own: some are faster, late, back again, or busy with other things."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from gossiping import LAYOUT, SECONDS, SETTINGS, TABLE, Circle, circle, exchange_of, settle, start_weights

from hybridps.config import Settings
from hybridps.gossip import Exchange, Partnership, PushExchange
from hybridps.gossip.exchanges import MOST_SPANS
from hybridps.gossip.inbox import MOST_WAITING

pytestmark = pytest.mark.timeout(60)

WHOLE = [(0, LAYOUT.length)]
SYMMETRIC, PULL, PUSH = (Partnership(kind, "random", seed=5) for kind in ("symmetric", "pull", "push"))


def exchanges_of(groups: Circle, partnership: Partnership) -> list[Exchange]:
    return [exchange_of(groups.there[rank], partnership) for rank in range(groups.size)]


def let_letters_come(groups: Circle, seconds: float = 0.02) -> None:
    next(iter(groups.there.values())).until(lambda: False, seconds)


def test_one_group_that_asks_all_others_stays_among_them() -> None:
    with circle(8) as groups:
        exchanges = exchanges_of(groups, Partnership("symmetric", "complete"))
        weights = [np.full(LAYOUT.length, float(rank == 0), np.float32) for rank in range(8)]
        for _ in range(6):
            exchanges[0].begin(weights[0], WHOLE)
            settle(exchanges, weights)
            assert np.min(weights) > -1e-6
            assert np.max(weights) < 1 + 1e-6
        np.testing.assert_allclose(np.sum(weights, 0), 1, atol=1e-5)
        assert np.ptp(weights, axis=0).max() < 0.1


@pytest.mark.parametrize("topology", ["random", "complete"])
def test_one_group_that_is_much_faster_than_the_others_does_not_drive_them_apart(topology: str) -> None:
    with circle(8) as groups:
        exchanges = exchanges_of(groups, Partnership("symmetric", topology))
        weights = start_weights(8)
        total, most = np.sum(weights, 0), np.abs(weights).max()
        for turn in range(200):
            exchanges[0].take_in(weights[0])
            exchanges[0].begin(weights[0], WHOLE)
            for rank in range(1, 8) if turn % 20 == 19 else ():
                exchanges[rank].take_in(weights[rank])
                exchanges[rank].begin(weights[rank], WHOLE)
            let_letters_come(groups, 0.002)
            assert np.abs(weights).max() < 2 * most
        settle(exchanges, weights)
        np.testing.assert_allclose(np.sum(weights, 0), total, atol=1e-4)
        assert np.ptp(weights, axis=0).max() < 1


def test_many_spans_are_sent_as_few_and_all_are_answered() -> None:
    with circle(2) as groups:
        exchanges = exchanges_of(groups, SYMMETRIC)
        weights = start_weights(2)
        before = [own.copy() for own in weights]
        spans = [(16 * part, 16 * part + 8) for part in range(20)]
        exchanges[0].begin(weights[0], spans)
        assert len(exchanges[0].touched) == MOST_SPANS
        settle(exchanges, weights)
        assert exchanges[0].is_quiet
        for start, stop in spans:
            np.testing.assert_allclose(weights[0][start:stop], weights[1][start:stop], atol=1e-6)
        np.testing.assert_array_equal(weights[0][312:], before[0][312:])


def test_requests_beyond_those_that_may_wait_are_declined() -> None:
    with circle(2) as groups:
        exchanges = exchanges_of(groups, SYMMETRIC)
        weights = start_weights(2)
        answers = groups.there[0]._inboxes[TABLE].letters
        for number in range(1, MOST_WAITING + 4):
            groups.there[0].post(1, "offer", TABLE, weights[0], number=number, start=0, stop=LAYOUT.length)
        assert groups.there[0].until(lambda: len(answers) == 3, SECONDS)
        assert {answer.letter.kind for answer in answers} == {"decline"}
        exchanges[1].take_in(weights[1])
        assert groups.there[0].until(lambda: len(answers) == MOST_WAITING + 3, SECONDS)


def test_answers_that_nobody_asked_for_are_not_kept() -> None:
    with circle(2) as groups:
        exchanges_of(groups, SYMMETRIC)
        for number in range(5):
            groups.there[1].post(0, "decline", TABLE, number=number)
        groups.there[1].post(0, "pull", TABLE, number=9, start=0, stop=4)
        waits = groups.there[0]._inboxes[TABLE].letters
        assert groups.there[0].until(lambda: bool(waits), SECONDS)
        assert [incoming.letter.kind for incoming in waits] == ["pull"]


@pytest.mark.parametrize("partnership", [SYMMETRIC, PUSH])
def test_a_first_group_that_comes_after_the_others_have_begun_takes_their_weights_over(
    partnership: Partnership,
) -> None:
    groups = Circle(2, type(SETTINGS)(lost_seconds=0.3, heartbeat_seconds=0.05, deadline_seconds=10.0))
    try:
        groups.open(1)
        others = exchange_of(groups.there[1], partnership)
        weights = [np.zeros(LAYOUT.length, np.float32), np.full(LAYOUT.length, 10, np.float32)]
        others.take_in(weights[1])
        groups.open(0)
        first = exchange_of(groups.there[0], partnership)
        groups.wait_until_all_know_each_other()
        for _ in range(4):
            for exchange, own in zip((others, first), weights[::-1], strict=True):
                exchange.begin(own, WHOLE)
                settle([first, others], weights)
        np.testing.assert_array_equal(weights, 10)
        if isinstance(first, PushExchange) and isinstance(others, PushExchange):
            assert first.shares.own + others.shares.own == pytest.approx(1, abs=1e-12)
    finally:
        for rank in list(groups.there):
            groups.end(rank)
        groups.close()


def test_a_group_that_comes_again_is_not_asked_to_average_its_initial_values(tmp_path: Path) -> None:
    with circle(3, folder=tmp_path) as groups:
        exchanges = exchanges_of(groups, Partnership("symmetric", "ring"))
        weights = start_weights(3)
        for exchange, own in zip(exchanges, weights, strict=True):
            exchange.take_in(own)
            own[:] = 10
        groups.end(0, says_so=False)
        exchanges[0] = exchange_of(groups.open(0), Partnership("symmetric", "ring"))
        weights[0][:] = 0
        groups.wait_until_all_know_each_other()
        for _ in range(4):
            for rank in (1, 2, 0):
                exchanges[rank].begin(weights[rank], WHOLE)
                settle(exchanges, weights)
        np.testing.assert_array_equal(weights, 10)


def test_a_group_that_has_taken_over_weights_goes_on_whoever_else_tells_it_that_it_is_late(tmp_path: Path) -> None:
    with circle(4, folder=tmp_path) as groups:
        to_all = Partnership("symmetric", "complete")
        exchanges = exchanges_of(groups, to_all)
        weights = start_weights(4)
        for exchange, own in zip(exchanges, weights, strict=True):
            exchange.take_in(own)
            own[:] = 10
        groups.end(3, says_so=False)
        exchanges[3] = exchange_of(groups.open(3), to_all)
        weights[3][:] = 0
        groups.wait_until_all_know_each_other()
        taken_over = 0
        for _ in range(14):
            was_late = exchanges[3].late
            exchanges[3].take_in(weights[3])
            taken_over += was_late and not exchanges[3].late
            weights[3] += not exchanges[3].late  # its training
            exchanges[3].begin(weights[3], WHOLE)
            let_letters_come(groups)
            for rank in range(3):
                exchanges[rank].take_in(weights[rank])
            let_letters_come(groups)
        assert taken_over == 1
        assert np.min(weights) >= 10


def test_a_late_group_waits_for_a_partner_that_validates() -> None:
    with circle(2, type(SETTINGS)(lost_seconds=0.1, heartbeat_seconds=0.02, deadline_seconds=10.0)) as groups:
        first = exchange_of(groups.there[0], SYMMETRIC)
        weights = start_weights(2)
        first.take_in(weights[0])
        late = exchange_of(groups.there[1], SYMMETRIC)
        assert late.late
        late.begin(weights[1], WHOLE)
        time.sleep(0.5)
        late.take_in(weights[1])
        late.begin(weights[1], WHOLE)
        assert late.late
        settle([first, late], weights)
        assert not late.late
        np.testing.assert_array_equal(weights[1], weights[0])


def test_a_push_that_was_given_up_long_ago_is_still_paid_when_it_turns_out_to_be_taken() -> None:
    with circle(2) as groups:
        exchanges = [exchange for exchange in exchanges_of(groups, PUSH) if isinstance(exchange, PushExchange)]
        groups.there[0].deadline_seconds = 0.001
        weights = start_weights(2)
        for _ in range(70):
            exchanges[0].begin(weights[0], WHOLE)
            let_letters_come(groups, 0.004)
            exchanges[0].take_in(weights[0])
        assert exchanges[0].shares.own == pytest.approx(1 / 2)
        for _ in range(50):  # letters are late on a busy machine
            settle(exchanges, weights)
            let_letters_come(groups, 0.1)
            whole = sum(exchange.shares.own - exchange.shares.owed for exchange in exchanges)
            if whole == pytest.approx(1, abs=1e-9):
                break
        assert whole == pytest.approx(1, abs=1e-9)


def test_a_group_that_comes_again_counts_barriers_with_the_others(tmp_path: Path) -> None:
    """It waits at none before it trains, as the others are in the middle of their training; then all meet."""
    with circle(2, folder=tmp_path) as groups, ThreadPoolExecutor(1) as pool:
        exchanges_of(groups, SYMMETRIC)
        other = groups.there[0]
        for number in range(2):
            waits = pool.submit(other.meet)
            groups.there[1].meet()
            waits.result(SECONDS)
            assert other.peers.passed == number + 1
        groups.end(1, says_so=False)
        again = groups.open(1)
        for _ in range(4):
            again.meet()
        waits = pool.submit(other.meet)
        assert again.until(lambda: again.peers[0].arrived == 3, SECONDS)
        again.meet()
        let_letters_come(groups)
        assert not waits.done()
        exchange_of(again, SYMMETRIC).take_in(start_weights(1)[0])
        again.meet()
        waits.result(SECONDS)
        assert again.peers.passed == other.peers.passed == 3
        waits = pool.submit(again.meet)
        let_letters_come(groups)
        assert not waits.done()
        other.meet()
        waits.result(SECONDS)


def test_a_group_that_comes_again_meets_the_others_at_the_first_barrier(tmp_path: Path) -> None:
    with circle(2, folder=tmp_path) as groups, ThreadPoolExecutor(1) as pool:
        waits = pool.submit(groups.there[0].meet)
        groups.end(1, says_so=False)
        again = groups.open(1)
        assert again.until(lambda: again.peers[0].arrived == 1, SECONDS)
        assert not waits.done()
        again.meet()
        waits.result(SECONDS)
        assert again.peers.passed == 1


def test_a_group_that_starts_late_is_at_the_barrier_that_its_program_has_reached(tmp_path: Path) -> None:
    """The others had not waited for it, as they did not know whether it would start."""
    settings = type(SETTINGS)(lost_seconds=0.2, heartbeat_seconds=0.05, deadline_seconds=10.0)
    groups = Circle(2, settings, tmp_path)
    try:
        first = groups.open(0)
        first.meet()
        late = groups.open(1)
        groups.wait_until_all_know_each_other()
        late.meet()
        assert (late.peers.passed, first.peers.passed) == (1, 1)
    finally:
        groups.end(0)
        groups.end(1)
        groups.close()


@pytest.mark.parametrize("partnership", [SYMMETRIC, PULL, PUSH], ids=["symmetric", "pull", "push"])
def test_a_group_that_was_silent_while_the_others_settled_does_not_wait_for_those_that_wait_for_it(
    partnership: Partnership,
) -> None:
    """It asks one that is at the next barrier already, and so will not answer before it comes there."""
    settings = Settings(lost_seconds=0.5, heartbeat_seconds=0.1)
    with circle(2, settings) as groups, ThreadPoolExecutor(1) as pool:
        other, own = groups.there[0], groups.there[1]
        other.deadline_seconds = SECONDS  # the other one has 20 minutes
        exchanges = [exchange_of(partners, partnership) for partners in (other, own)]
        weights = start_weights(2)

        def settle_(rank: int) -> None:
            def is_quiet() -> bool:
                exchanges[rank].take_in(weights[rank], settles=True)
                return exchanges[rank].is_quiet

            groups.there[rank].meet(is_quiet)

        own.silent_seconds = lambda: 1.0
        settle_(0)
        exchanges[1].begin(weights[1], WHOLE)
        assert not exchanges[1].is_quiet
        own.silent_seconds = lambda: 0.0
        assert other.until(lambda: other.peers.is_there(1), SECONDS)
        waits = pool.submit(other.meet)
        assert own.until(lambda: own.peers.is_ahead(0), SECONDS)
        assert not waits.done()
        settle_(1)
        own.meet()
        waits.result(SECONDS)
        exchanges[0].take_in(weights[0])

        def answer_counts() -> bool:
            exchanges[1].take_in(weights[1])
            shares = [each.shares.own for each in exchanges if isinstance(each, PushExchange)]
            return abs(sum(shares) - 1) < 1e-12 if shares else exchanges[1].distance > 0

        assert own.until(answer_counts, SECONDS)
