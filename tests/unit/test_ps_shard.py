from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridps.errors import LayoutError, ProtocolError, ServerError
from hybridps.memory import Layout
from hybridps.ps.rules import Elastic, Sum
from hybridps.ps.shard import GroupTakenError, Shard
from hybridps.ps.table import Done, Joined, Terms, Ticket

LAYOUT = Layout.of("float32", {"w": (40,)})
TERMS = Terms(LAYOUT, Sum(), 64, 0, 1)
CHUNKS = 3


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


def test_first_registration_initialises_and_others_wait_for_the_centre():
    shard = Shard()
    for group in range(3):
        shard.enter("job", group, 3)
    assert joined(shard.register(ticket(1), "w", TERMS)) == [(1, True)]
    assert shard.register(ticket(0), "w", TERMS) == []
    assert joined(shard.initialise(ticket(1), "w", 0, values(5))) == []
    assert joined(shard.initialise(ticket(1), "w", 2, None)) == []
    assert joined(shard.initialise(ticket(1), "w", 1, values(6))) == [(0, False)]
    assert joined(shard.register(ticket(2), "w", TERMS)) == [(2, False)]
    assert [told(shard.pull(ticket(2), "w", chunk))[0][2] for chunk in range(3)] == [5, 6, 0]


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
            shard.initialise(ticket(group), "w", 0, values(1))


def test_sum_answers_all_groups_of_the_round():
    shard = shard_with(3)
    assert shard.push(ticket(0, 1), "w", 1, values(1), True) == []
    assert shard.push(ticket(2, 2), "w", 1, values(2), True) == []
    assert told(shard.push(ticket(1, 3), "w", 1, values(4), True)) == [(0, 1, 7), (2, 2, 7), (1, 3, 7)]
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
    shard = shard_with(2, Terms(LAYOUT, Elastic(0.25), 64, 0, 1), initial=8)
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
        (Terms(Layout.of("float32", {"w": (41,)}), Sum(), 64, 0, 1), LayoutError, r"\(41,\) instead of \(40,\)"),
        (Terms(LAYOUT, Elastic(0.5), 64, 0, 1), ServerError, r"rule=Sum\(\).*alpha=0.5"),
        (Terms(LAYOUT, Sum(), 128, 0, 1), ServerError, "chunk_bytes=64.*128"),
        (Terms(LAYOUT, Sum(), 64, 0, 2), ServerError, "servers=1.*2"),
        (Terms(LAYOUT, Sum(), 64, 1, 2), ServerError, "servers=1.*2"),
        (Terms(LAYOUT, Sum(), 64, 2, 2), ProtocolError, "server 2 is none of 2"),
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
        shard.register(ticket(1), "w", TERMS)


def test_the_last_to_leave_takes_the_tables_with_it():
    shard = shard_with(1, initial=3)
    shard.leave("job", 0)
    shard.enter("job", 0, 4)
    assert joined(shard.register(ticket(0), "w", Terms(LAYOUT, Elastic(0.5), 64, 0, 1))) == [(0, True)]


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
    assert joined(shard.register(ticket(0), "w", Terms(LAYOUT, Elastic(0.5), 64, 0, 1))) == [(0, True)]


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


def test_memory_is_bounded():
    shard = Shard(memory_bytes=3 * LAYOUT.nbytes)
    shard.enter("job", 0, 1)
    shard.register(ticket(0), "w", TERMS)
    with pytest.raises(ServerError, match=f"needs about {2 * LAYOUT.nbytes} bytes.* {LAYOUT.nbytes} of"):
        shard.register(ticket(0), "v", TERMS)


def test_a_table_without_elements_is_complete_at_once():
    shard = Shard()
    terms = Terms(Layout.of("float64", {}), Sum(), 64, 0, 1)
    for group in range(2):
        shard.enter("job", group, 2)
    assert joined(shard.register(ticket(0), "w", terms)) == [(0, True)]
    assert joined(shard.register(ticket(1), "w", terms)) == [(1, False)]


class TestSecondServer:
    """The other servers follow what the first one said."""

    TERMS = Terms(LAYOUT, Sum(), 64, 1, 2)
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
        for done in shard.push(ticket(group, chunk), "w", chunk, values(10**group + number), True):
            assert done.values[0] == sum(10**other + number for other in range(groups))
            answered[done.ticket.group, done.chunk] += 1
    assert answered == left
