"""Tables of a rack server, driven by hand: what goes up, what comes back, and who is told."""

from __future__ import annotations

import numpy as np
import pytest

from hybridps.errors import ServerError
from hybridps.memory import Layout
from hybridps.ps.clocks import BulkSynchronous, FreeRunning
from hybridps.ps.rules import SGD, Elastic, Sum
from hybridps.ps.rules.finite import NotFiniteError
from hybridps.ps.shard import Shard
from hybridps.ps.terms import Done, Joined, Terms, Ticket, Up, Work

TERMS = Terms(Layout.of("float32", {"w": (32,)}), Sum(), BulkSynchronous(), 64, 0, 1)


def ran(outcomes):
    """What is to be told or sent up, the work done."""
    told = []
    for outcome in outcomes:
        if isinstance(outcome, Work):
            outcome.run()
            told += outcome.done
        else:
            told.append(outcome)
    return told


def ups(told):
    return [up for up in told if isinstance(up, Up)]


def tickets(told):
    return [(end.ticket.group, end.ticket.request, end.chunk) for end in told if isinstance(end, Done)]


def ones(number=1.0):
    return np.full(16, number, np.float32)


def ticket(group, request=0):
    return Ticket("job", group, request)


def entered(groups=2, terms=TERMS):
    """All groups have registered, and group 0 is to initialise."""
    shard = Shard(in_rack=True)
    for group in range(groups):
        shard.enter("job", group, groups)
        told = ran(shard.register(ticket(group), "w", terms))
        assert told == ([Joined(ticket(0), True)] if group == 0 else [])
    return shard, shard.table(ticket(0), "w")


def begun(groups=2, terms=TERMS, centre=5.0):
    """The parents have answered with their centre."""
    shard, table = entered(groups, terms)
    assert ran(table.initialise(ticket(0, 1), 0, ones())) == []
    (up,) = ran(table.initialise(ticket(0, 1), 1, ones()))
    assert (up.chunk, up.way.table, up.way.layout.length) == (None, "w", 32)
    assert (up.way.values == 1).all()
    up.way.values[:] = centre
    told = ran(shard.answered(up, None))
    assert tickets(told) == [(0, 1, 0), (0, 1, 1)]
    assert [end.ticket.group for end in told if isinstance(end, Joined)] == list(range(1, groups))
    return shard, table


def round_of(table, request, chunk=0):
    """Both groups exchange a chunk: what goes up."""
    assert ran(table.exchange(ticket(0, request), chunk, ones(1))) == []
    (up,) = ran(table.exchange(ticket(1, request), chunk, ones(2)))
    return up


def test_the_parents_centre_is_the_rack_s():
    _, table = begun()
    (done,) = ran(table.pull(ticket(0, 2), 1))
    np.testing.assert_array_equal(done.values, ones(5))


def test_a_round_goes_up_as_one_value_and_its_answer_to_all():
    shard, table = begun()
    up = round_of(table, 3)
    assert (up.chunk, up.groups) == (0, 2)
    np.testing.assert_array_equal(up.way.values[up.way.places[0]], ones(3))
    assert ran(table.pull(ticket(1, 4), 0)) == []
    up.way.values[up.way.places[0]] = 7
    told = ran(shard.answered(up, None))
    assert tickets(told) == [(0, 3, 0), (1, 3, 0), (1, 4, 0)]
    for done in told:
        np.testing.assert_array_equal(done.values, ones(7))


def test_a_round_waits_for_the_one_before():
    shard, table = begun()
    first = round_of(table, 3)
    assert ran(table.exchange(ticket(0, 4), 0, ones(10))) == []
    assert ran(table.exchange(ticket(1, 4), 0, ones(20))) == []
    np.testing.assert_array_equal(first.way.values[:16], ones(3))
    *told, second = ran(shard.answered(first, None))
    assert tickets(told) == [(0, 3, 0), (1, 3, 0)]
    np.testing.assert_array_equal(second.way.values[:16], ones(30))
    assert tickets(ran(shard.answered(second, None))) == [(0, 4, 0), (1, 4, 0)]


def test_what_comes_again_is_told_once_and_then_again():
    shard, table = begun()
    up = round_of(table, 3)
    assert ran(table.exchange(ticket(0, 3), 0, ones(9))) == []
    assert len(tickets(ran(shard.answered(up, None)))) == 2
    (again,) = ran(table.exchange(ticket(0, 3), 0, ones(9)))
    np.testing.assert_array_equal(again.values, ones(3))


def test_what_was_refused_stays_refused_though_the_group_goes_on():
    shard, table = begun()
    assert ran(table.exchange(ticket(0, 2), 0, ones(np.nan))) == []
    refused, up = ran(table.exchange(ticket(1, 2), 0, ones(2)))
    assert (refused.ticket, isinstance(refused.error, NotFiniteError)) == (ticket(0, 2), True)
    assert up.way.values[0] == 2
    ran(table.push(ticket(0, 3), 0, ones(1)))
    ran(table.push(ticket(1, 3), 0, ones(1)))  # the next round is complete before the answer comes
    assert tickets(ran(shard.answered(up, None))) == [(1, 2, 0)]


def test_a_group_that_left_is_told_nothing_though_it_is_back():
    shard, table = begun()
    up = round_of(table, 3)
    assert ran(shard.leave("job", 1)) == []
    shard.enter("job", 1, 2)
    assert ran(shard.register(ticket(1), "w", TERMS)) == [Joined(ticket(1), False)]
    assert tickets(ran(shard.answered(up, None))) == [(0, 3, 0)]


def test_the_initialiser_goes_while_the_parents_are_asked():
    shard, table = entered()
    ran(table.initialise(ticket(0, 1), 0, ones()))
    (up,) = ran(table.initialise(ticket(0, 1), 1, ones()))
    assert ran(table.initialise(ticket(0, 1), 1, ones())) == []
    assert ran(shard.leave("job", 0)) == []
    assert ran(shard.answered(up, None)) == [Joined(ticket(1), False)]


def test_the_initialiser_goes_before_its_values_are_there():
    shard, table = entered()
    ran(table.initialise(ticket(0, 1), 0, ones()))
    assert ran(shard.leave("job", 0)) == [Joined(ticket(1), True)]
    ran(table.initialise(ticket(1, 1), 0, ones(3)))
    (up,) = ran(table.initialise(ticket(1, 1), 1, ones(3)))
    assert (up.way.values == 3).all()


def test_the_last_group_takes_the_table_with_it_and_its_memory():
    shard, table = begun()
    up = round_of(table, 3)
    for group in (0, 1):
        ran(shard.leave("job", group, lost=True))
    assert shard.budget.used_bytes == 0
    assert shard.answered(up, None) == []


def test_elastic_goes_up_when_as_many_values_came_as_there_are_groups():
    terms = Terms(TERMS.layout, Elastic(0.5), FreeRunning(), 64, 0, 1)
    shard, table = begun(terms=terms, centre=0.0)
    assert ups(ran(table.exchange(ticket(0, 3), 0, ones(8)))) == []
    told = ran(table.exchange(ticket(0, 4), 0, ones(8)))
    (up,) = ups(told)
    centre = up.way.values[:16].copy()
    np.testing.assert_array_equal(centre, ones(6))
    # While it is under way values go on to come; what the parents moved is taken from the centre of then.
    ran(table.exchange(ticket(1, 3), 0, ones(10)))
    assert ups(ran(table.exchange(ticket(1, 4), 0, ones(10)))) == []
    up.way.values[:16] = 2
    (again,) = ups(ran(shard.answered(up, None)))
    np.testing.assert_array_equal(again.way.values[:16], ones(9 - 2))


def test_what_cannot_be_computed_in_racks_leaves_no_trace():
    shard = Shard(in_rack=True)
    shard.enter("job", 0, 1)
    for terms in (
        Terms(TERMS.layout, SGD(rate=1), FreeRunning(), 64, 0, 1),
        Terms(TERMS.layout, Sum(), BulkSynchronous(), 60, 0, 1),
    ):
        with pytest.raises(ServerError, match="in racks"):
            shard.register(ticket(0), "w", terms)
    assert shard.budget.used_bytes == 0
