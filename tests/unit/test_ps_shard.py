from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridps.errors import LayoutError, ProtocolError, ServerError
from hybridps.memory import Layout
from hybridps.ps import shard as real
from hybridps.ps import wire
from hybridps.ps.budget import Budget
from hybridps.ps.clocks import BoundedStale, BulkSynchronous, FreeRunning
from hybridps.ps.requests import Regions, carry_out
from hybridps.ps.rules import SGD, Elastic, Mean, Sum
from hybridps.ps.rules.finite import NotFiniteError, is_finite
from hybridps.ps.shard import GroupTakenError
from hybridps.ps.terms import Done, Joined, Terms, Ticket, Work

LAYOUT = Layout.of("float32", {"w": (40,)})
TERMS = Terms(LAYOUT, Sum(), BulkSynchronous(), 64, 0, 1)
CHUNKS = 3


class Shard(real.Shard):
    """Does the work that calls return, in order; they return who is answered."""

    def register(self, *arguments, **options):
        return ran(super().register(*arguments, **options))

    def leave(self, *arguments, **options):
        return ran(super().leave(*arguments, **options))

    def initialise(self, ticket, table, chunk, payload):
        return ran(self.table(ticket, table).initialise(ticket, chunk, payload))

    def push(self, ticket, table, chunk, payload, answered):
        there = self.table(ticket, table)
        if answered:
            return ran(there.exchange(ticket, chunk, payload))
        there.check_push(chunk, payload)
        return ran(there.push(ticket, chunk, payload))

    def pull(self, ticket, table, chunk):
        return ran(self.table(ticket, table).pull(ticket, chunk))


def ran(outcomes):
    answers = []
    for outcome in outcomes:
        if isinstance(outcome, Work):
            outcome.run()
            answers += outcome.done
        else:
            answers.append(outcome)
    return answers


def ticket(group, request=0, job="job"):
    return Ticket(job, group, request)


def values(number):
    return np.full(16, number, np.float32)


def shard_with(groups, terms=TERMS, initial=0.0):
    """A shard with table `w`, registered by all groups."""
    shard = Shard()
    for group in range(groups):
        shard.enter("job", group, groups)
        shard.register(ticket(group), "w", terms)
    for chunk in range(CHUNKS):
        shard.initialise(ticket(0), "w", chunk, values(initial))
    return shard


def told(outcomes):
    """(group, request, value of the answer or None) of each outcome."""
    return [
        (o.ticket.group, o.ticket.request, None if o.values is None else float(o.values[0]))
        for o in outcomes
        if isinstance(o, Done)
    ]


def joined(outcomes):
    return [(o.ticket.group, o.initialise) for o in outcomes if isinstance(o, Joined)]


def test_the_first_group_initialises_whoever_comes_first_and_others_wait_for_the_centre():
    shard = Shard()
    for group in range(3):
        shard.enter("job", group, 3)
    assert shard.register(ticket(1), "w", TERMS) == []
    assert joined(shard.register(ticket(0), "w", TERMS)) == [(0, True)]
    assert joined(shard.initialise(ticket(0), "w", 0, values(5))) == []
    assert joined(shard.initialise(ticket(0), "w", 2, None)) == []
    assert joined(shard.initialise(ticket(0), "w", 1, values(6))) == [(1, False)]
    assert joined(shard.register(ticket(2), "w", TERMS)) == [(2, False)]
    assert [told(shard.pull(ticket(2), "w", chunk))[0][2] for chunk in range(3)] == [5, 6, 0]


@pytest.mark.parametrize("first", [0, 1])
def test_nobody_waits_on_a_server_without_chunks(first):
    """The first server told both groups, and who comes here first is a matter of chance."""
    shard, empty = Shard(), Terms(Layout.of("float32", {"w": (0,)}), Sum(), BulkSynchronous(), 64, 1, 2)
    for group in range(2):
        shard.enter("job", group, 2)
    for group in (first, 1 - first):
        assert joined(shard.register(ticket(group), "w", empty, group == 0)) == [(group, group == 0)]


@pytest.mark.parametrize("lost", [False, True])
def test_the_next_one_that_waits_initialises_if_the_first_goes(lost):
    shard = Shard()
    for group in range(3):
        shard.enter("job", group, 3)
        shard.register(ticket(group), "w", TERMS)
    shard.initialise(ticket(0), "w", 0, values(5))
    assert joined(shard.leave("job", 0, lost)) == [(1, True)]
    shard.initialise(ticket(1), "w", 1, values(7))
    shard.initialise(ticket(1), "w", 2, values(7))
    assert joined(shard.initialise(ticket(1), "w", 0, values(7))) == [(2, False)]
    assert told(shard.pull(ticket(1), "w", 0)) == [(1, 0, 7)]


def test_without_the_first_group_the_next_one_initialises_when_it_does_not_come():
    shard = Shard()
    for group in (2, 1):
        shard.enter("job", group, 3)
        assert shard.register(ticket(group), "w", TERMS) == []
    assert joined(shard.begin_without_absent("job")) == [(1, True)]
    assert shard.begin_without_absent("job") == []
    for chunk in range(CHUNKS):
        shard.initialise(ticket(1), "w", chunk, values(7))
    shard.enter("job", 0, 3)
    assert joined(shard.register(ticket(0), "w", TERMS)) == [(0, False)]


def test_tables_made_later_wait_for_the_groups_that_are_there():
    shard = Shard()
    for group in (1, 2):
        shard.enter("job", group, 3)
    shard.begin_without_absent("job")
    assert shard.register(ticket(2), "w", TERMS) == []
    assert joined(shard.register(ticket(1), "w", TERMS)) == [(1, True)]


def test_initialiser_gone_with_nobody_waiting():
    shard = Shard()
    shard.enter("job", 0, 2)
    shard.enter("job", 1, 2)
    shard.register(ticket(0), "w", TERMS)
    shard.leave("job", 0, lost=True)
    assert joined(shard.register(ticket(1), "w", TERMS)) == [(1, True)]


def test_only_the_initialiser_may_send_initial_values():
    shard = shard_with(2)
    for group in (0, 1):
        with pytest.raises(ProtocolError, match=f"group {group} is not the one to initialise"):
            shard.initialise(ticket(group, 1), "w", 0, values(1))


def test_what_begins_a_table_may_be_sent_again():
    shard = Shard()
    for group in (0, 1):
        shard.enter("job", group, 2)
    assert joined(shard.register(ticket(1, 5), "w", TERMS)) == []
    for _ in range(2):
        assert joined(shard.register(ticket(0, 3), "w", TERMS)) == [(0, True)]
        assert joined(shard.register(ticket(1, 5), "w", TERMS)) == []
    with pytest.raises(ProtocolError, match="group 0 registers table 'w' twice"):
        shard.register(ticket(0, 4), "w", TERMS)
    for chunk in range(CHUNKS):
        shard.initialise(ticket(0, 4), "w", chunk, values(chunk + 1))
        assert told(shard.initialise(ticket(0, 4), "w", chunk, values(9))) == [(0, 4, None)]
    with pytest.raises(ProtocolError, match="not the one to initialise"):
        shard.initialise(ticket(0, 5), "w", 0, values(9))
    assert told(shard.pull(ticket(1, 6), "w", 0)) == [(1, 6, 1)]
    assert joined(shard.register(ticket(1, 5), "w", TERMS)) == [(1, False)]


def test_sum_answers_all_groups_of_the_round():
    shard = shard_with(3)
    assert shard.push(ticket(0, 1), "w", 1, values(1), True) == []
    assert shard.push(ticket(2, 2), "w", 1, values(2), True) == []
    assert told(shard.push(ticket(1, 3), "w", 1, values(4), True)) == [(0, 1, 7), (1, 3, 7), (2, 2, 7)]
    assert told(shard.pull(ticket(0), "w", 1)) == [(0, 0, 7)]


def test_a_push_is_told_at_once():
    shard = shard_with(2)
    assert told(shard.push(ticket(0, 1), "w", 0, values(1), False)) == [(0, 1, None)]
    assert told(shard.push(ticket(1, 2), "w", 0, values(2), True)) == [(1, 2, 3)]


def test_a_round_is_completed_by_a_loss_and_by_a_leave():
    shard = shard_with(3)
    shard.push(ticket(0, 1), "w", 0, values(1), True)
    shard.push(ticket(1, 2), "w", 0, values(2), True)
    shard.push(ticket(0, 3), "w", 2, values(5), True)
    assert told(shard.leave("job", 2, lost=True)) == [(0, 1, 3), (1, 2, 3)]
    assert told(shard.leave("job", 1)) == [(0, 3, 5)]


def test_a_group_that_went_before_a_table_was_made_is_not_waited_for():
    shard = Shard()
    for group in range(2):
        shard.enter("job", group, 2)
    shard.leave("job", 1)
    shard.register(ticket(0), "w", TERMS)
    for chunk in range(CHUNKS):
        shard.initialise(ticket(0), "w", chunk, None)
    assert told(shard.push(ticket(0), "w", 0, values(1), True)) == [(0, 0, 1)]


def test_an_expected_group_is_waited_for_before_it_came():
    shard = Shard()
    shard.enter("job", 0, 2)
    shard.register(ticket(0), "w", TERMS)
    for chunk in range(CHUNKS):
        shard.initialise(ticket(0), "w", chunk, None)
    assert shard.push(ticket(0), "w", 0, values(1), True) == []


def test_a_lost_group_returns_between_rounds():
    shard = shard_with(2)
    shard.leave("job", 1, lost=True)
    shard.push(ticket(0, 1), "w", 0, values(1), True)
    shard.enter("job", 1, 2)
    assert joined(shard.register(ticket(1), "w", TERMS)) == [(1, False)]
    assert shard.push(ticket(0, 2), "w", 0, values(1), True) == []
    assert told(shard.push(ticket(1, 1), "w", 0, values(2), True)) == [(0, 2, 3), (1, 1, 3)]


def test_a_returning_group_waits_for_the_rounds_under_way():
    shard = shard_with(3)
    shard.leave("job", 2, lost=True)
    shard.push(ticket(0, 1), "w", 0, values(1), True)
    shard.enter("job", 2, 3)
    assert shard.register(ticket(2, 5), "w", TERMS) == []
    with pytest.raises(ServerError, match="group 2 has not finished to register"):
        shard.push(ticket(2, 6), "w", 0, values(1), True)
    outcomes = shard.push(ticket(1, 1), "w", 0, values(2), True)
    assert told(outcomes) == [(0, 1, 3), (1, 1, 3)]
    assert joined(outcomes) == [(2, False)]


def test_elastic_answers_at_once_and_conserves():
    shard = shard_with(2, Terms(LAYOUT, Elastic(0.25), FreeRunning(), 64, 0, 1), initial=8)
    assert told(shard.push(ticket(1, 1), "w", 0, values(16), True)) == [(1, 1, 2)]
    assert told(shard.pull(ticket(0, 2), "w", 0)) == [(0, 2, 10)]


def test_jobs_do_not_meet():
    shard = shard_with(1, initial=1)
    shard.enter("other", 0, 1)
    with pytest.raises(ServerError, match="job 'other' has no table 'w'"):
        shard.pull(ticket(0, job="other"), "w", 0)
    assert joined(shard.register(ticket(0, job="other"), "w", TERMS)) == [(0, True)]
    for chunk in range(CHUNKS):
        shard.initialise(ticket(0, job="other"), "w", chunk, values(2))
    assert told(shard.pull(ticket(0), "w", 0)) == [(0, 0, 1)]


@pytest.mark.parametrize(
    ("terms", "kind", "named"),
    [
        (
            Terms(Layout.of("float32", {"w": (41,)}), Sum(), BulkSynchronous(), 64, 0, 1),
            LayoutError,
            r"\(41,\) instead of \(40,\)",
        ),
        (Terms(LAYOUT, Elastic(0.5), FreeRunning(), 64, 0, 1), ServerError, r"rule=Sum\(\).*alpha=0.5"),
        (Terms(LAYOUT, Sum(), BulkSynchronous(), 128, 0, 1), ServerError, "chunk_bytes=64.*128"),
        (Terms(LAYOUT, Sum(), BulkSynchronous(), 64, 0, 2), ServerError, "servers=1.*2"),
        (Terms(LAYOUT, Sum(), BulkSynchronous(), 64, 1, 2), ServerError, "servers=1.*2"),
        (Terms(LAYOUT, Sum(), BulkSynchronous(), 64, 2, 2), ProtocolError, "server 2 is none of 2"),
    ],
)
def test_other_terms_are_refused_with_both_values(terms, kind, named):
    shard = Shard()
    shard.enter("job", 0, 2)
    shard.enter("job", 1, 2)
    shard.register(ticket(0), "w" if "none of" not in named else "v", TERMS)
    with pytest.raises(kind, match=named):
        shard.register(ticket(1), "w", terms)


def test_another_number_of_groups_is_refused_with_both():
    shard = shard_with(2)
    with pytest.raises(ServerError, match="groups=2.*3"):
        shard.enter("job", 2, 3)


def test_a_group_enters_once():
    shard = shard_with(2)
    with pytest.raises(GroupTakenError, match="group 1"):
        shard.enter("job", 1, 2)
    with pytest.raises(ProtocolError, match="group 2 is none of 2"):
        shard.enter("job", 2, 2)
    with pytest.raises(ProtocolError, match="twice"):
        shard.register(ticket(1, 1), "w", TERMS)


def test_the_last_to_leave_takes_the_tables_with_it():
    shard = shard_with(1, initial=3)
    shard.leave("job", 0)
    shard.enter("job", 0, 4)
    assert joined(shard.register(ticket(0), "w", Terms(LAYOUT, Elastic(0.5), FreeRunning(), 64, 0, 1))) == [(0, True)]


def test_the_centre_outlives_the_loss_of_all_groups():
    shard = shard_with(1, initial=3)
    shard.leave("job", 0, lost=True)
    shard.enter("job", 0, 1)
    assert joined(shard.register(ticket(0), "w", TERMS)) == [(0, False)]
    assert told(shard.pull(ticket(0), "w", 0)) == [(0, 0, 3)]


def test_other_terms_replace_an_abandoned_table():
    shard = shard_with(1)
    shard.leave("job", 0, lost=True)
    shard.enter("job", 0, 1)
    assert joined(shard.register(ticket(0), "w", Terms(LAYOUT, Elastic(0.5), FreeRunning(), 64, 0, 1))) == [(0, True)]


@pytest.mark.parametrize(
    ("chunk", "payload", "named"),
    [(3, values(1), "chunk 3"), (0, values(1)[:15], "64 bytes, 60 came"), (0, memoryview(b""), "64 bytes, 0 came")],
)
def test_bad_chunks_change_nothing(chunk, payload, named):
    shard = shard_with(2)
    with pytest.raises(ProtocolError, match=named):
        shard.push(ticket(0), "w", chunk, payload, True)
    shard.push(ticket(0), "w", 0, values(1), True)
    assert told(shard.push(ticket(1), "w", 0, values(1), True))[0][2] == 2


def test_what_is_not_registered_is_refused():
    shard = Shard()
    with pytest.raises(ServerError, match="group 0 of job 'job' is not there"):
        shard.pull(ticket(0), "w", 0)
    shard.enter("job", 0, 1)
    with pytest.raises(ServerError, match="no table 'w'"):
        shard.pull(ticket(0), "w", 0)
    shard.register(ticket(0), "w", TERMS)
    with pytest.raises(ServerError, match="not finished"):
        shard.push(ticket(0), "w", 0, values(1), True)


ELASTIC = Terms(LAYOUT, Elastic(0.5), FreeRunning(), 64, 0, 1)


def test_a_round_of_one_value_is_told_again_as_it_was():
    shard = shard_with(1, ELASTIC)
    for again in range(3):
        assert told(shard.push(ticket(0, 1), "w", 0, values(4), True)) == [(0, 1, 2)], again
    assert told(shard.pull(ticket(0, 2), "w", 0)) == [(0, 2, 2)]
    shard.settle("job", 0, 1)
    assert told(shard.push(ticket(0, 1), "w", 0, values(4), True)) == [(0, 1, 2)]
    shard.settle("job", 0, 2)
    assert shard.push(ticket(0, 1), "w", 0, values(4), True) == []


def errors(outcomes):
    return [(o.ticket.group, type(o.error)) for o in outcomes if o.error is not None]


@pytest.mark.parametrize("groups", [2, 6])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_round_goes_on_without_values_that_are_no_numbers(groups, bad):
    """The others get the mean of the others, whether their values are added up at once or bit by bit."""
    shard = shard_with(groups, Terms(LAYOUT, Mean(), BulkSynchronous(), 64, 0, 1))
    outcomes = []
    for group in range(groups):
        brought = values(group)
        if group == 1:
            brought[5] = bad
        outcomes += shard.push(ticket(group, 1), "w", 0, brought, True)
    assert errors(outcomes) == [(1, NotFiniteError)]
    others = [group for group in range(groups) if group != 1]
    mean = np.float32(sum(others)) / np.float32(groups - 1)
    assert told([o for o in outcomes if o.error is None]) == [(group, 1, mean) for group in others]
    for group in range(groups):
        outcomes = shard.push(ticket(group, 2), "w", 0, values(3), True)
    assert told(outcomes) == [(group, 2, 3) for group in range(groups)]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("place", [0, 4095, 4096, 9000, 9999])
def test_values_count_up_to_the_block_with_the_first_that_is_no_number(dtype, place):
    """And those of the others everywhere; a sum that is too large is no reason to refuse anybody."""
    layout = Layout.of(dtype, {"a": (10_048,)})
    shard = Shard()
    for group in range(3):
        shard.enter("job", group, 3)
        shard.register(ticket(group), "w", Terms(layout, Mean(), BulkSynchronous(), 1 << 20, 0, 1))
    shard.initialise(ticket(0), "w", 0, None)
    brought = [np.full(10_048, group, dtype) for group in (1, 2, 6)]
    brought[1][place:] = np.inf
    brought[0][500] = brought[2][500] = np.finfo(dtype).max
    outcomes = []
    with np.errstate(over="ignore"):
        for group, array in enumerate(brought):
            outcomes += shard.push(ticket(group, 1), "w", 0, array, True)
        expected = np.where(np.arange(10_048) // 4096 < place // 4096, (1 + 2 + 6) / 3, (1 + 6) / 2).astype(dtype)
        expected[500] = np.inf
    assert errors(outcomes) == [(1, NotFiniteError)]
    assert f"element {place} of it is inf" in str(next(o.error for o in outcomes if o.error))
    for outcome in outcomes:
        if outcome.error is None:
            np.testing.assert_array_equal(outcome.values, expected)


def test_a_round_of_no_numbers_leaves_the_centre_as_it_is():
    shard = shard_with(1, ELASTIC, initial=7)
    for _ in range(2):
        assert errors(shard.push(ticket(0, 1), "w", 0, values(np.nan), True)) == [(0, NotFiniteError)]
    assert told(shard.pull(ticket(0, 2), "w", 0)) == [(0, 2, 7)]


def test_a_push_of_no_numbers_does_not_count():
    shard = shard_with(2)
    with pytest.raises(NotFiniteError, match=r"chunk 0 of table 'w' .* element 0 of it is nan"):
        shard.push(ticket(0, 1), "w", 0, values(np.nan), False)
    shard.push(ticket(0, 2), "w", 0, values(1), False)
    assert told(shard.push(ticket(1, 1), "w", 0, values(2), True)) == [(1, 1, 3)]


def requested(shard, message, *payloads, group=0):
    """What a request comes to, and whether it was refused after that."""
    begun = []
    try:
        for outcome in carry_out(shard, "job", group, message, [memoryview(p).cast("B") for p in payloads], Regions()):
            begun.append(outcome)
    except (NotFiniteError, ProtocolError):
        return ran(begun), True
    return ran(begun), False


def test_a_message_of_pushes_counts_as_a_whole_or_not_at_all():
    shard = shard_with(2)
    requested(shard, wire.Exchange(1, "w", 0, 2), values(1), values(2), group=1)
    assert requested(shard, wire.Push(1, "w", 0, 2), values(1), values(np.nan)) == ([], True)
    told_now, refused = requested(shard, wire.Push(2, "w", 0, 2), values(1), values(3))
    assert not refused
    assert told(told_now) == [(0, 2, None), (1, 1, 2), (0, 2, None), (1, 1, 5)]


def test_what_counted_before_the_rest_of_a_message_was_refused_is_told():
    shard = shard_with(2)
    for chunk in (0, 1):
        shard.push(ticket(0, 1), "w", chunk, values(1), True)
    shard.push(ticket(1, 1), "w", 1, values(1), True)
    shard.push(ticket(1, 2), "w", 1, values(1), True)
    told_now, refused = requested(shard, wire.Exchange(3, "w", 0, 2), values(5), values(5), group=1)
    assert refused  # chunk 1 is under way
    assert told(told_now) == [(0, 1, 6), (1, 3, 6)]


def test_a_refusal_is_told_again():
    shard = shard_with(2)
    shard.push(ticket(0, 1), "w", 0, values(np.nan), True)
    shard.push(ticket(1, 1), "w", 0, values(2), True)
    (again,) = shard.push(ticket(0, 1), "w", 0, values(np.nan), True)
    assert isinstance(again.error, NotFiniteError)
    assert told(shard.push(ticket(1, 1), "w", 0, values(2), True)) == [(1, 1, 2)]
    shard.push(ticket(0, 2), "w", 0, values(1), True)
    assert told(shard.push(ticket(1, 2), "w", 0, values(2), True)) == [(0, 2, 3), (1, 2, 3)]


def test_a_refusal_is_told_when_the_clock_lets_the_group_go_on():
    shard = shard_with(2, Terms(LAYOUT, SGD(rate=1), BoundedStale(0), 64, 0, 1))
    assert shard.push(ticket(0, 1), "w", 0, values(np.nan), True) == []
    refused, answered = shard.push(ticket(1, 1), "w", 0, values(2), True)
    assert isinstance(refused.error, NotFiniteError)
    assert told([answered]) == [(1, 1, -2)]


@pytest.mark.parametrize("terms", [TERMS, Terms(LAYOUT, Elastic(0.5), FreeRunning(), 64, 0, 1)])
def test_an_answer_that_is_not_kept_any_more_is_an_error(terms):
    shard = shard_with(1, terms)
    for request in (1, 2):
        shard.push(ticket(0, request), "w", 0, values(1), True)
    (late,) = shard.push(ticket(0, 1), "w", 0, values(1), True)
    assert "one exchange of a chunk under way" in str(late.error)
    assert len(shard.push(ticket(0, 2), "w", 0, values(1), True)) == 1


def test_initial_values_that_are_no_numbers_are_refused():
    shard = Shard()
    shard.enter("job", 0, 1)
    shard.register(ticket(0), "w", TERMS)
    with pytest.raises(NotFiniteError, match="inf"):
        shard.initialise(ticket(0, 1), "w", 0, values(np.inf))


def test_a_server_may_take_them():
    shard = Shard(check_finite=False)
    shard.enter("job", 0, 1)
    shard.register(ticket(0), "w", TERMS)
    for chunk in range(CHUNKS):
        shard.initialise(ticket(0), "w", chunk, None)
    (answer,) = shard.push(ticket(0, 1), "w", 0, values(np.nan), True)
    assert np.isnan(answer.values).all()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_the_largest_numbers_are_numbers(dtype):
    for length in (1, 7, 64, 1001):
        array = np.resize(np.array([0.0, -0.0, np.finfo(dtype).max, np.finfo(dtype).min, 1e-7], dtype), length)
        assert is_finite(array)
        for place in {0, length // 2, length - 1}:
            for bad in (np.nan, -np.nan, np.inf, -np.inf):
                changed = array.copy()
                changed[place] = bad
                assert not is_finite(changed)


def test_memory_is_bounded():
    needed = TERMS.memory_bytes(groups=1)
    shard = Shard(memory_bytes=2 * needed - 1)
    shard.enter("job", 0, 1)
    shard.register(ticket(0), "w", TERMS)
    with pytest.raises(ServerError, match=f"'v' needs about {needed} bytes.* {needed - 1} of"):
        shard.register(ticket(0), "v", TERMS)
    shard.leave("job", 0)
    assert shard.budget.used_bytes == 0


@pytest.mark.parametrize("in_rack", [False, True])
def test_a_table_that_cannot_be_made_takes_no_memory(in_rack):
    shard = Shard(in_rack=in_rack)
    shard.enter("job", 0, 1)
    with pytest.raises((LayoutError, ServerError), match="chunk_bytes"):
        shard.register(ticket(0), "w", Terms(LAYOUT, Sum(), BulkSynchronous(), 2, 0, 1))
    assert shard.budget.used_bytes == 0


@pytest.mark.parametrize("lost", [False, True])
def test_what_waits_for_a_group_that_never_comes_goes_with_the_job(lost):
    shard = Shard()
    shard.enter("job", 0, 2)
    shard.register(ticket(0), "w", TERMS)
    for chunk in range(CHUNKS):
        shard.initialise(ticket(0), "w", chunk, values(0))
    shard.push(ticket(0, 1), "w", 0, values(1), True)
    in_place = values(1)
    there = shard.table(ticket(0), "w")
    ran(there.exchange_in_place(ticket(0, 1), 1, [in_place], [in_place]))
    shard.leave("job", 0, lost)
    shard.enter("job", 0, 3)  # another number: the tables are not kept
    assert shard.budget.used_bytes == 0


def test_jobs_that_were_lost_make_room():
    shard = Shard(memory_bytes=2 * TERMS.memory_bytes(groups=1))
    for job in "abc":
        shard.enter(job, 0, 1)
        shard.register(ticket(0, job=job), "w", TERMS)
        shard.leave(job, 0, lost=True)
    shard.enter("b", 0, 1)
    shard.enter("a", 0, 1)
    assert joined(shard.register(ticket(0, 2, job="a"), "w", TERMS)) == [(0, True)]  # in the place of c
    with pytest.raises(ServerError, match="are free"):
        shard.register(ticket(0, 3, job="a"), "v", TERMS)


def test_values_and_answers_are_used_memory():
    tenant = Budget(1 << 20, Budget(1 << 30), "me")
    shard = Shard()
    for group in (0, 1):
        shard.enter("job", group, 2, tenant)
        shard.register(ticket(group), "w", TERMS)
    for chunk in range(CHUNKS):
        shard.initialise(ticket(0), "w", chunk, None)
    before = tenant.used_bytes
    shard.push(ticket(0, 1), "w", 0, values(1), True)
    assert tenant.used_bytes == before + 64
    answers = shard.push(ticket(1, 1), "w", 0, values(1), True)
    assert len(answers) == 2
    assert tenant.used_bytes == before + 64  # one answer, for both
    del answers
    assert tenant.used_bytes == before
    shard.push(ticket(0, 2), "w", 0, values(1), True)
    for group in (0, 1):
        shard.leave("job", group)
    assert [budget.used_bytes for budget in tenant.chain] == [0, 0]


def test_a_table_without_elements_is_complete_at_once():
    shard = Shard()
    terms = Terms(Layout.of("float64", {}), Sum(), BulkSynchronous(), 64, 0, 1)
    for group in range(2):
        shard.enter("job", group, 2)
    assert joined(shard.register(ticket(0), "w", terms)) == [(0, True)]
    assert joined(shard.register(ticket(1), "w", terms)) == [(1, False)]


class TestSecondServer:
    """The other servers follow what the first one said."""

    TERMS = Terms(LAYOUT, Sum(), BulkSynchronous(), 64, 1, 2)
    CHUNK = 1

    def shard(self):
        shard = Shard()
        for group in range(2):
            shard.enter("job", group, 2)
        return shard

    def test_follows(self):
        shard = self.shard()
        assert joined(shard.register(ticket(1), "w", self.TERMS, initialise=True)) == [(1, True)]
        shard.initialise(ticket(1), "w", self.CHUNK, values(1))
        assert joined(shard.register(ticket(0), "w", self.TERMS, initialise=False)) == [(0, False)]
        with pytest.raises(ProtocolError, match="chunk 0 .*not on server 1 of 2"):
            shard.pull(ticket(0), "w", 0)

    def test_a_second_initialiser_starts_anew(self):
        shard = self.shard()
        shard.register(ticket(1), "w", self.TERMS, initialise=True)
        shard.initialise(ticket(1), "w", self.CHUNK, values(1))
        assert joined(shard.register(ticket(0), "w", self.TERMS, initialise=True)) == [(0, True)]
        shard.initialise(ticket(0), "w", self.CHUNK, values(2))
        assert told(shard.pull(ticket(0), "w", self.CHUNK)) == [(0, 0, 2)]

    def test_a_table_in_use_is_not_initialised_again(self):
        shard = self.shard()
        shard.register(ticket(1), "w", self.TERMS, initialise=True)
        shard.initialise(ticket(1), "w", self.CHUNK, values(1))
        shard.push(ticket(1), "w", self.CHUNK, values(1), True)
        with pytest.raises(ServerError, match="unknown to the first server"):
            shard.register(ticket(0), "w", self.TERMS, initialise=True)

    def test_no_centre_here_is_refused(self):
        with pytest.raises(ServerError, match="no centre here"):
            self.shard().register(ticket(0), "w", self.TERMS, initialise=False)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 4), st.data())
def test_sum_over_any_order_of_arrivals(groups, data):
    """Every round's answer is the sum of the values of that round, whatever the order of chunks and groups."""
    shard = shard_with(groups)
    rounds = 2
    left = {(group, chunk): 0 for group in range(groups) for chunk in range(CHUNKS)}
    answered = dict.fromkeys(left, 0)
    while any(count < rounds for count in left.values()):
        able = [key for key in left if left[key] < rounds and left[key] == answered[key]]
        group, chunk = data.draw(st.sampled_from(sorted(able)))
        number = left[group, chunk]
        left[group, chunk] += 1
        for done in shard.push(ticket(group, number), "w", chunk, values(10**group + number), True):
            assert done.values[0] == sum(10**other + number for other in range(groups))
            answered[done.ticket.group, done.chunk] += 1
    assert answered == left
