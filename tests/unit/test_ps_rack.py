"""Tables of a rack server, driven by hand: what goes up, what comes back, and who is told."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from synchronous_jobs import SynchronousJobs, errors, origin, ran

from hybridps.errors import ProtocolError, ServerError
from hybridps.memory import Layout
from hybridps.ps.clocks import BulkSynchronous, FreeRunning
from hybridps.ps.model import Admitted, Answer, ParentRequest, TableSpec
from hybridps.ps.rules import SGD, Elastic, Momentum, Sum
from hybridps.ps.rules.finite import NotFiniteError
from hybridps.ps.server.tables.rack import RackTable

SPEC = TableSpec(Layout.of("float32", {"w": (32,)}), Sum(), BulkSynchronous(), 64, 0, 1)


def ups(told):
    return [up for up in told if isinstance(up, ParentRequest)]


def done(told):
    return [(end.origin.group, end.origin.request, end.chunk) for end in told if isinstance(end, Answer)]


def in_rack(**options):
    return SynchronousJobs(make_table=RackTable, **options)


def brought(up):
    """What goes up: that part of the buffer."""
    return up.table.values[up.place]


def ones(number=1.0):
    return np.full(16, number, np.float32)


def entered(groups=2, spec=SPEC):
    """All groups have registered, and group 0 is to initialise."""
    jobs = in_rack()
    for group in range(groups):
        jobs.enter("job", group, groups)
        told = jobs.register(origin(group), "w", spec)
        assert told == ([Admitted(origin(0), True)] if group == 0 else [])
    return jobs


def begun(groups=2, spec=SPEC, centre=5.0):
    """The parents have answered with their centre."""
    jobs = entered(groups, spec)
    assert jobs.initialise(origin(0, 1), "w", 0, ones()) == []
    (up,) = jobs.initialise(origin(0, 1), "w", 1, ones())
    assert (up.action, up.table.name, up.table.parent_layout.length) == ("register", "w", 32)
    assert (up.table.values == 1).all()
    up.table.values[:] = centre
    told = ran(up.then(None))
    assert done(told) == [(0, 1, 0), (0, 1, 1)]
    assert [end.origin.group for end in told if isinstance(end, Admitted)] == list(range(1, groups))
    return jobs


def round_of(jobs, request, chunk=0):
    """Both groups exchange a chunk: what goes up."""
    assert jobs.contribute(origin(0, request), "w", chunk, ones(1)) == []
    (up,) = jobs.contribute(origin(1, request), "w", chunk, ones(2))
    return up


def test_the_parents_centre_is_the_rack_s():
    jobs = begun()
    (answer,) = jobs.pull(origin(0, 2), "w", 1)
    np.testing.assert_array_equal(answer.values, ones(5))


def test_a_round_goes_up_as_one_value_and_its_answer_to_all():
    jobs = begun()
    up = round_of(jobs, 3)
    assert (up.action, up.place, up.groups) == ("exchange", slice(0, 16), 2)
    np.testing.assert_array_equal(brought(up), ones(3))
    brought(up)[:] = 7
    told = ran(up.then(None))
    assert done(told) == [(0, 3, 0), (1, 3, 0)]
    for answer in told:
        np.testing.assert_array_equal(answer.values, ones(7))
    (centre,) = jobs.pull(origin(1, 4), "w", 0)
    np.testing.assert_array_equal(centre.values, ones(7))


def test_a_round_is_refused_before_the_answer_of_the_one_before():
    jobs = begun()
    up = round_of(jobs, 3)
    with pytest.raises(ProtocolError, match="group 0 contributes to chunk 0 .* before it has the answer of the round"):
        jobs.contribute(origin(0, 4), "w", 0, ones(10))
    assert done(ran(up.then(None))) == [(0, 3, 0), (1, 3, 0)]
    assert brought(round_of(jobs, 4))[0] == 3


def numbers(start, stop, factor=1.0):
    return np.arange(start, stop, dtype=np.float32) * np.float32(factor)


@pytest.mark.parametrize("parts", [[(0, 6), (6, 16)], [(6, 16), (0, 6)], [(3, 5), (8, 16), (0, 3), (5, 8)]])
def test_one_group_sends_parts_of_what_another_sends_as_a_whole(parts):
    """The parts go up as they are complete, each as the sum of its own elements."""
    jobs = begun()
    assert jobs.contribute(origin(0, 3), "w", 0, numbers(0, 16)) == []
    away = []
    for request, (start, stop) in enumerate(parts):
        away += ups(jobs.contribute(origin(1, 10 + request), "w", 0, numbers(start, stop, 10), start, stop))
    told = []
    for up, (start, stop) in zip(away, parts, strict=True):
        assert up.place == slice(start, stop)
        np.testing.assert_array_equal(brought(up), numbers(start, stop, 11))
        brought(up)[:] = numbers(start, stop, 100)
        told += ran(up.then(None))
    assert sorted(done(told)) == [(0, 3, 0), *((1, 10 + request, 0) for request in range(len(parts)))]
    for answer in told:
        if isinstance(answer, Answer):
            start, stop = (0, 16) if answer.origin.group == 0 else parts[answer.origin.request - 10]
            np.testing.assert_array_equal(answer.values, numbers(start, stop, 100))


def test_a_whole_is_answered_when_the_parents_have_answered_all_of_its_parts():
    """The parents may answer the last part first."""
    jobs = begun()
    assert jobs.contribute(origin(0, 3), "w", 0, ones(1)) == []
    (first,) = ups(jobs.contribute(origin(1, 10), "w", 0, ones(2), 0, 6))
    (last,) = ups(jobs.contribute(origin(1, 11), "w", 0, ones(2), 6, 16))
    for up, number in ((first, 7), (last, 8)):
        brought(up)[:] = number
    assert done(ran(last.then(None))) == [(1, 11, 0)]
    told = ran(first.then(None))
    assert sorted(done(told)) == [(0, 3, 0), (1, 10, 0)]
    (whole,) = [answer for answer in told if answer.origin.group == 0]
    np.testing.assert_array_equal(whole.values, [*[7] * 6, *[8] * 10])


def test_what_was_added_up_early_enters_the_rounds_of_all_parts():
    jobs = begun(groups=5)
    for group in range(4):
        assert jobs.contribute(origin(group, 3), "w", 0, numbers(0, 16, group + 1)) == []
    told = []
    for request, (start, stop) in enumerate(((8, 16), (0, 8))):
        (up,) = jobs.contribute(origin(4, 10 + request), "w", 0, numbers(start, stop, 90), start, stop)
        assert up.groups == 5
        np.testing.assert_array_equal(brought(up), numbers(start, stop, 100))
        told += ran(up.then(None))
    assert len(done(told)) == 6


def test_what_comes_again_is_told_once_and_then_again():
    jobs = begun()
    up = round_of(jobs, 3)
    assert jobs.contribute(origin(0, 3), "w", 0, ones(9)) == []
    assert len(done(ran(up.then(None)))) == 2
    (again,) = jobs.contribute(origin(0, 3), "w", 0, ones(9))
    np.testing.assert_array_equal(again.values, ones(3))


def test_what_was_refused_is_told_when_the_parents_have_answered():
    jobs = begun(spec=msgspec.structs.replace(SPEC, rule=Momentum(rate=1)))
    assert jobs.contribute(origin(0, 2), "w", 0, ones(np.nan)) == []
    (up,) = jobs.contribute(origin(1, 2), "w", 0, ones(2))
    assert (up.table.values[0], up.groups) == (2, 1)
    told = ran(up.then(None))
    assert errors(told) == [(0, NotFiniteError)]
    assert done([each for each in told if each.error is None]) == [(1, 2, 0)]
    assert brought(round_of(jobs, 3))[0] == 3


def test_sums_go_up_whatever_they_are_and_the_rack_tells_whose_are_no_numbers():
    jobs = begun()
    assert jobs.contribute(origin(0, 2), "w", 1, ones(np.nan)) == []
    (up,) = jobs.contribute(origin(1, 2), "w", 1, ones(2))
    assert np.isnan(brought(up)).all()
    told = ran(up.then(None))
    assert [(end.origin.group, [*end.not_finite]) for end in told] == [(0, [(0, 16)]), (1, [])]


def test_initial_values_that_are_no_numbers_do_not_go_up():
    jobs = entered(spec=msgspec.structs.replace(SPEC, rule=Momentum(rate=1)))
    assert errors(jobs.initialise(origin(0, 1), "w", 0, ones(np.nan))) == [(0, NotFiniteError)]
    assert ups(jobs.initialise(origin(0, 1), "w", 1, ones())) == []


def test_a_group_that_left_is_told_nothing_though_it_is_back():
    jobs = begun()
    up = round_of(jobs, 3)
    assert jobs.leave("job", 1) == []
    jobs.enter("job", 1, 2)
    assert jobs.register(origin(1), "w", SPEC) == [Admitted(origin(1), False)]
    assert done(ran(up.then(None))) == [(0, 3, 0)]


def test_what_a_group_brings_that_is_back_counts_in_its_own_round():
    """Though the round that it left is still at the parents."""
    jobs = begun()
    up = round_of(jobs, 3)
    jobs.leave("job", 1)
    jobs.enter("job", 1, 2)
    back = origin(1, 1, epoch=1)
    jobs.register(back, "w", SPEC)
    assert jobs.contribute(back._replace(request=2), "w", 0, ones(20)) == []
    assert done(ran(up.then(None))) == [(0, 3, 0)]
    (up,) = jobs.contribute(origin(0, 4), "w", 0, ones(10))
    np.testing.assert_array_equal(brought(up), ones(30))
    assert done(ran(up.then(None))) == [(0, 4, 0), (1, 2, 0)]


def test_nothing_is_written_to_the_memory_of_a_group_that_left():
    """Its memory may be used for something else by then."""
    jobs = begun()
    ours, theirs = ones(1), ones(2)
    jobs.contribute_in_place(origin(0, 3), "w", 0, ours)
    (up,) = jobs.contribute_in_place(origin(1, 3), "w", 0, theirs)
    jobs.leave("job", 1)
    brought(up)[:] = 7
    assert done(ran(up.then(None))) == [(0, 3, 0)]
    np.testing.assert_array_equal(ours, ones(7))
    np.testing.assert_array_equal(theirs, ones(2))


def test_a_table_that_all_groups_dropped_is_dropped_at_the_parents():
    jobs = begun()
    assert ups(jobs.drop(origin(0, 3), "w")) == []
    (up,) = ups(jobs.drop(origin(1, 3), "w"))
    assert (up.action, up.table.name) == ("drop", "w")
    assert jobs.budget.used_bytes == 0


def test_the_initialiser_goes_while_the_parents_are_asked():
    jobs = entered()
    jobs.initialise(origin(0, 1), "w", 0, ones())
    (up,) = jobs.initialise(origin(0, 1), "w", 1, ones())
    assert jobs.initialise(origin(0, 1), "w", 1, ones()) == []
    assert jobs.leave("job", 0) == []
    assert ran(up.then(None)) == [Admitted(origin(1), False)]


def test_the_initialiser_goes_before_its_values_are_there():
    jobs = entered()
    jobs.initialise(origin(0, 1), "w", 0, ones())
    assert jobs.leave("job", 0) == [Admitted(origin(1), True)]
    jobs.initialise(origin(1, 1), "w", 0, ones(3))
    (up,) = jobs.initialise(origin(1, 1), "w", 1, ones(3))
    assert (up.table.values == 3).all()


def test_the_last_group_takes_the_table_with_it_and_its_memory():
    jobs = begun()
    up = round_of(jobs, 3)
    for group in (0, 1):
        jobs.leave("job", group, lost=True)
    assert ran(up.then(None)) == []
    del up
    assert jobs.budget.used_bytes == 0


def test_elastic_goes_up_when_as_many_values_came_as_there_are_groups():
    spec = TableSpec(SPEC.layout, Elastic(0.5), FreeRunning(), 64, 0, 1)
    jobs = begun(spec=spec, centre=0.0)
    assert ups(jobs.contribute(origin(0, 3), "w", 0, ones(8))) == []
    told = jobs.contribute(origin(0, 4), "w", 0, ones(8))
    (up,) = ups(told)
    centre = up.table.values[:16].copy()
    np.testing.assert_array_equal(centre, ones(6))
    # While it is under way values go on to come; what the parents moved is taken from the centre of then.
    jobs.contribute(origin(1, 3), "w", 0, ones(10))
    assert ups(jobs.contribute(origin(1, 4), "w", 0, ones(10))) == []
    up.table.values[:16] = 2
    (again,) = ups(ran(up.then(None)))
    np.testing.assert_array_equal(again.table.values[:16], ones(9 - 2))


def test_what_cannot_be_computed_in_racks_leaves_no_trace():
    jobs = in_rack()
    jobs.enter("job", 0, 1)
    for spec in (
        TableSpec(SPEC.layout, SGD(rate=1), FreeRunning(), 64, 0, 1),
        TableSpec(SPEC.layout, Sum(), BulkSynchronous(), 60, 0, 1),
    ):
        with pytest.raises(ServerError, match="in racks"):
            jobs.register(origin(0), "w", spec)
    assert jobs.budget.used_bytes == 0
