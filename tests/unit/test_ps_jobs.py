"""The server without transport: who initialises a table, who is answered with what, and what memory is used."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synchronous_jobs import SynchronousJobs, admitted, errors, origin, ran, told, values

from hybridps.compiled.finite import is_finite
from hybridps.errors import LayoutError, ProtocolError, ServerError
from hybridps.memory import Layout
from hybridps.ps import wire
from hybridps.ps.clocks import BoundedStale, BulkSynchronous, FreeRunning
from hybridps.ps.model import Admitted, Answer, Contribution, GroupTakenError, TableSpec, Task
from hybridps.ps.rules import SGD, Elastic, Foreign, Mean, Momentum, Sum
from hybridps.ps.rules.finite import NotFiniteError
from hybridps.ps.rules.kernel import BLOCK
from hybridps.ps.server.admission import Budget
from hybridps.ps.server.chunks.exchange import ANSWER_BYTES, CONTRIBUTION_BYTES
from hybridps.ps.server.requests import Regions, carry_out
from hybridps.ps.server.tables.jobs import Jobs
from hybridps.ps.server.tables.rack import RackTable

LAYOUT = Layout.of("float32", {"w": (40,)})
SPEC = TableSpec(LAYOUT, Sum(), BulkSynchronous(), 64, 0, 1)
EQUALLY = TableSpec(LAYOUT, Sum(), BulkSynchronous(equally=True), 64, 0, 1)
CHUNKS = 3


def jobs_with(groups, spec=SPEC, initial=0.0, **options):
    """Jobs with table `w`, registered by all groups."""
    jobs = SynchronousJobs(**options)
    for group in range(groups):
        jobs.enter("job", group, groups)
        jobs.register(origin(group), "w", spec)
    for chunk in range(CHUNKS):
        jobs.initialise(origin(0), "w", chunk, values(initial))
    return jobs


def test_the_first_group_initialises_whoever_comes_first_and_others_wait_for_the_centre():
    jobs = SynchronousJobs()
    for group in range(3):
        jobs.enter("job", group, 3)
    assert jobs.register(origin(1), "w", SPEC) == []
    assert admitted(jobs.register(origin(0), "w", SPEC)) == [(0, True)]
    assert admitted(jobs.initialise(origin(0), "w", 0, values(5))) == []
    assert admitted(jobs.initialise(origin(0), "w", 2, None)) == []
    assert admitted(jobs.initialise(origin(0), "w", 1, values(6))) == [(1, False)]
    assert admitted(jobs.register(origin(2), "w", SPEC)) == [(2, False)]
    assert [told(jobs.pull(origin(2), "w", chunk))[0][2] for chunk in range(3)] == [5, 6, 0]


@pytest.mark.parametrize("lead", [0, 1])
def test_nobody_is_let_in_before_the_only_chunk_is_there_whichever_server_has_it(lead):
    """A table of one chunk: the server that has it decides who initialises it."""
    rule = Foreign(framework="mxnet", optimizer="lamb", states=2, whole_keys=True)
    layouts = [Layout.of("float32", {name: (16,)}) for name in "abcdefgh"]
    specs = [TableSpec(layout, rule, FreeRunning(), 64, lead, 2) for layout in layouts]
    spec = next(spec for spec in specs if spec.chunk_map().owned_between(lead, 0, 16))
    servers = [SynchronousJobs() for _ in range(2)]
    for jobs in servers:
        for group in (0, 1):
            jobs.enter("job", group, 2)
    assert servers[lead].register(origin(1), "w", spec) == []
    assert admitted(servers[lead].register(origin(0), "w", spec)) == [(0, True)]
    other = msgspec.structs.replace(spec, server=1 - lead)
    assert admitted(servers[1 - lead].register(origin(0), "w", other, initialise=True)) == [(0, True)]
    assert admitted(servers[lead].initialise(origin(0), "w", 0, values(5))) == [(1, False)]
    assert admitted(servers[1 - lead].register(origin(1), "w", other)) == [(1, False)]


@pytest.mark.parametrize("first", [0, 1])
def test_nobody_waits_on_a_server_without_chunks(first):
    """The first server told both groups, and who comes here first is a matter of chance."""
    jobs, empty = SynchronousJobs(), TableSpec(Layout.of("float32", {"w": (0,)}), Sum(), BulkSynchronous(), 64, 1, 2)
    for group in range(2):
        jobs.enter("job", group, 2)
    for group in (first, 1 - first):
        assert admitted(jobs.register(origin(group), "w", empty, group == 0)) == [(group, group == 0)]


@pytest.mark.parametrize("lost", [False, True])
def test_the_next_one_that_waits_initialises_if_the_first_goes(lost):
    jobs = SynchronousJobs()
    for group in range(3):
        jobs.enter("job", group, 3)
        jobs.register(origin(group), "w", SPEC)
    jobs.initialise(origin(0), "w", 0, values(5))
    assert admitted(jobs.leave("job", 0, lost)) == [(1, True)]
    jobs.initialise(origin(1), "w", 1, values(7))
    jobs.initialise(origin(1), "w", 2, values(7))
    assert admitted(jobs.initialise(origin(1), "w", 0, values(7))) == [(2, False)]
    assert told(jobs.pull(origin(1), "w", 0)) == [(1, 0, 7)]


def test_without_the_first_group_the_next_one_initialises_when_it_does_not_come():
    jobs = SynchronousJobs()
    for group in (2, 1):
        jobs.enter("job", group, 3)
        assert jobs.register(origin(group), "w", SPEC) == []
    assert admitted(jobs.begin_without_absent("job")) == [(1, True)]
    assert jobs.begin_without_absent("job") == []
    for chunk in range(CHUNKS):
        jobs.initialise(origin(1), "w", chunk, values(7))
    jobs.enter("job", 0, 3)
    assert admitted(jobs.register(origin(0), "w", SPEC)) == [(0, False)]


def test_tables_made_later_wait_for_the_groups_that_are_there():
    jobs = SynchronousJobs()
    for group in (1, 2):
        jobs.enter("job", group, 3)
    jobs.begin_without_absent("job")
    assert jobs.register(origin(2), "w", SPEC) == []
    assert admitted(jobs.register(origin(1), "w", SPEC)) == [(1, True)]


def test_initialiser_gone_with_nobody_waiting():
    jobs = SynchronousJobs()
    jobs.enter("job", 0, 2)
    jobs.enter("job", 1, 2)
    jobs.register(origin(0), "w", SPEC)
    jobs.leave("job", 0, lost=True)
    assert admitted(jobs.register(origin(1), "w", SPEC)) == [(1, True)]


def test_initial_values_come_in_several_requests_and_a_late_copy_changes_nothing():
    jobs = SynchronousJobs()
    for group in (0, 1):
        jobs.enter("job", group, 2)
        jobs.register(origin(group), "w", SPEC)
    assert told(jobs.initialise(origin(0, 1), "w", 0, values(5))) == [(0, 1, None)]
    assert told(jobs.initialise(origin(0, 2), "w", 1, values(6))) == [(0, 2, None)]
    assert jobs.initialise(origin(0, 1), "w", 0, values(9)) == []
    assert told(jobs.initialise(origin(0, 2), "w", 1, values(9))) == [(0, 2, None)], "sent again"
    assert admitted(jobs.initialise(origin(0, 3), "w", 2, values(7))) == [(1, False)]
    assert [told(jobs.pull(origin(1), "w", chunk))[0][2] for chunk in range(3)] == [5, 6, 7]


def test_only_the_initialiser_may_send_initial_values():
    jobs = jobs_with(2)
    for group in (0, 1):
        with pytest.raises(ProtocolError, match=f"group {group} is not the one to initialise"):
            jobs.initialise(origin(group, 1), "w", 0, values(1))


def test_what_begins_a_table_may_be_sent_again():
    jobs = SynchronousJobs()
    for group in (0, 1):
        jobs.enter("job", group, 2)
    assert admitted(jobs.register(origin(1, 5), "w", SPEC)) == []
    for _ in range(2):
        assert admitted(jobs.register(origin(0, 3), "w", SPEC)) == [(0, True)]
        assert admitted(jobs.register(origin(1, 5), "w", SPEC)) == []
    with pytest.raises(ProtocolError, match="group 0 registers table 'w' twice"):
        jobs.register(origin(0, 4), "w", SPEC)
    for chunk in range(CHUNKS):
        jobs.initialise(origin(0, 4), "w", chunk, values(chunk + 1))
        assert told(jobs.initialise(origin(0, 4), "w", chunk, values(9))) == [(0, 4, None)]
    with pytest.raises(ProtocolError, match="not the one to initialise"):
        jobs.initialise(origin(0, 5), "w", 0, values(9))
    assert told(jobs.pull(origin(1, 6), "w", 0)) == [(1, 6, 1)]
    assert admitted(jobs.register(origin(1, 5), "w", SPEC)) == [(1, False)]


def test_sum_answers_all_groups_of_the_round():
    jobs = jobs_with(3)
    assert jobs.contribute(origin(0, 1), "w", 1, values(1)) == []
    assert jobs.contribute(origin(2, 2), "w", 1, values(2)) == []
    assert told(jobs.contribute(origin(1, 3), "w", 1, values(4))) == [(0, 1, 7), (1, 3, 7), (2, 2, 7)]
    assert told(jobs.pull(origin(0), "w", 1)) == [(0, 0, 7)]


def test_a_round_is_completed_by_a_loss_and_by_a_leave():
    jobs = jobs_with(3)
    jobs.contribute(origin(0, 1), "w", 0, values(1))
    jobs.contribute(origin(1, 2), "w", 0, values(2))
    jobs.contribute(origin(0, 3), "w", 2, values(5))
    assert told(jobs.leave("job", 2, lost=True)) == [(0, 1, 3), (1, 2, 3)]
    assert told(jobs.leave("job", 1)) == [(0, 3, 5)]


def test_a_group_that_went_before_a_table_was_made_is_not_waited_for():
    jobs = SynchronousJobs()
    for group in range(2):
        jobs.enter("job", group, 2)
    jobs.leave("job", 1)
    jobs.register(origin(0), "w", SPEC)
    for chunk in range(CHUNKS):
        jobs.initialise(origin(0), "w", chunk, None)
    assert told(jobs.contribute(origin(0), "w", 0, values(1))) == [(0, 0, 1)]


def test_an_expected_group_is_waited_for_before_it_came():
    jobs = SynchronousJobs()
    jobs.enter("job", 0, 2)
    jobs.register(origin(0), "w", SPEC)
    for chunk in range(CHUNKS):
        jobs.initialise(origin(0), "w", chunk, None)
    assert jobs.contribute(origin(0), "w", 0, values(1)) == []


def test_a_lost_group_returns_between_rounds():
    jobs = jobs_with(2)
    jobs.leave("job", 1, lost=True)
    jobs.contribute(origin(0, 1), "w", 0, values(1))
    jobs.enter("job", 1, 2)
    assert admitted(jobs.register(origin(1), "w", SPEC)) == [(1, False)]
    assert jobs.contribute(origin(0, 2), "w", 0, values(1)) == []
    assert told(jobs.contribute(origin(1, 1), "w", 0, values(2))) == [(0, 2, 3), (1, 1, 3)]


def test_a_returning_group_waits_for_the_rounds_under_way():
    jobs = jobs_with(3)
    jobs.leave("job", 2, lost=True)
    jobs.contribute(origin(0, 1), "w", 0, values(1))
    jobs.enter("job", 2, 3)
    assert jobs.register(origin(2, 5), "w", SPEC) == []
    with pytest.raises(ServerError, match="group 2 has not finished registering"):
        jobs.contribute(origin(2, 6), "w", 0, values(1))
    outcomes = jobs.contribute(origin(1, 1), "w", 0, values(2))
    assert told(outcomes) == [(0, 1, 3), (1, 1, 3)]
    assert admitted(outcomes) == [(2, False)]


def test_elastic_answers_at_once_and_conserves():
    jobs = jobs_with(2, TableSpec(LAYOUT, Elastic(0.25), FreeRunning(), 64, 0, 1), initial=8)
    assert told(jobs.contribute(origin(1, 1), "w", 0, values(16))) == [(1, 1, 2)]
    assert told(jobs.pull(origin(0, 2), "w", 0)) == [(0, 2, 10)]


def test_jobs_do_not_meet():
    jobs = jobs_with(1, initial=1)
    jobs.enter("other", 0, 1)
    with pytest.raises(ServerError, match="job 'other' has no table 'w'"):
        jobs.pull(origin(0, job="other"), "w", 0)
    assert admitted(jobs.register(origin(0, job="other"), "w", SPEC)) == [(0, True)]
    for chunk in range(CHUNKS):
        jobs.initialise(origin(0, job="other"), "w", chunk, values(2))
    assert told(jobs.pull(origin(0), "w", 0)) == [(0, 0, 1)]


@pytest.mark.parametrize(
    ("spec", "kind", "named"),
    [
        (
            TableSpec(Layout.of("float32", {"w": (41,)}), Sum(), BulkSynchronous(), 64, 0, 1),
            LayoutError,
            r"\(41,\) instead of \(40,\)",
        ),
        (TableSpec(LAYOUT, Elastic(0.5), FreeRunning(), 64, 0, 1), ServerError, r"rule=Sum\(\).*alpha=0.5"),
        (TableSpec(LAYOUT, Sum(), BulkSynchronous(), 128, 0, 1), ServerError, "chunk_bytes=64.*128"),
        (TableSpec(LAYOUT, Sum(), BulkSynchronous(), 64, 0, 2), ServerError, "servers=1.*2"),
        (TableSpec(LAYOUT, Sum(), BulkSynchronous(), 64, 1, 2), ServerError, "servers=1.*2"),
        (TableSpec(LAYOUT, Sum(), BulkSynchronous(), 64, 2, 2), ProtocolError, "server 2 is none of 2"),
    ],
)
def test_other_terms_are_refused_with_both_values(spec, kind, named):
    jobs = SynchronousJobs()
    jobs.enter("job", 0, 2)
    jobs.enter("job", 1, 2)
    jobs.register(origin(0), "w" if "none of" not in named else "v", SPEC)
    with pytest.raises(kind, match=named):
        jobs.register(origin(1), "w", spec)


def test_another_number_of_groups_is_refused_with_both():
    jobs = jobs_with(2)
    with pytest.raises(ServerError, match="groups=2.*3"):
        jobs.enter("job", 2, 3)


def test_a_group_enters_once():
    jobs = jobs_with(2)
    with pytest.raises(GroupTakenError, match="group 1"):
        jobs.enter("job", 1, 2)
    with pytest.raises(ProtocolError, match="group 2 is none of 2"):
        jobs.enter("job", 2, 2)
    with pytest.raises(ProtocolError, match="twice"):
        jobs.register(origin(1, 1), "w", SPEC)


def test_the_last_to_leave_takes_the_tables_with_it():
    jobs = jobs_with(1, initial=3)
    jobs.leave("job", 0)
    jobs.enter("job", 0, 4)
    assert admitted(jobs.register(origin(0), "w", TableSpec(LAYOUT, Elastic(0.5), FreeRunning(), 64, 0, 1))) == [
        (0, True)
    ]


def test_the_centre_outlives_the_loss_of_all_groups():
    jobs = jobs_with(1, initial=3)
    jobs.leave("job", 0, lost=True)
    jobs.enter("job", 0, 1)
    assert admitted(jobs.register(origin(0), "w", SPEC)) == [(0, False)]
    assert told(jobs.pull(origin(0), "w", 0)) == [(0, 0, 3)]


def ends(jobs, group, returns, is_there=True):
    """The processes of a group end."""
    jobs.end("job", group, returns)
    if is_there:
        jobs.leave("job", group, lost=True)


@pytest.mark.parametrize("others", ["drop", "leave"])
def test_the_centre_is_kept_for_a_group_that_is_started_again(others):
    jobs = jobs_with(3, initial=3)
    ends(jobs, 2, returns=True)
    for group in (0, 1):
        if others == "drop":
            jobs.drop(origin(group, 5), "w")
        jobs.leave("job", group)
    jobs.enter("job", 2, 3)
    assert admitted(jobs.register(origin(2, 9), "w", SPEC)) == [(2, False)]
    assert told(jobs.pull(origin(2, 9), "w", 0)) == [(2, 9, 3)]
    jobs.drop(origin(2, 9), "w")
    jobs.leave("job", 2)
    assert not [*jobs.tables()]


@pytest.mark.parametrize("is_there", [True, False])
def test_nothing_is_kept_for_a_group_that_is_not_started_again(is_there):
    """Whether the server knew before, by its silence, that it was lost, or not."""
    jobs = jobs_with(2, initial=3)
    jobs.end("job", 0, returns=False)
    jobs.leave("job", 0)
    if not is_there:
        jobs.leave("job", 1, lost=True)
        assert [*jobs.tables()]
    ends(jobs, 1, False, is_there)
    assert not [*jobs.tables()]


def test_a_group_that_was_to_be_started_again_and_is_not_is_no_longer_awaited():
    jobs = jobs_with(2, initial=3)
    jobs.leave("job", 1, lost=True)
    jobs.end("job", 1, returns=True)
    jobs.leave("job", 0)
    jobs.end("job", 0, returns=False)
    assert [*jobs.tables()]
    jobs.end("job", 1, returns=False)
    assert not [*jobs.tables()]


def test_a_group_that_comes_after_the_others_have_died_does_not_wait_for_them():
    jobs = SynchronousJobs()
    jobs.enter("job", 0, 2)
    jobs.register(origin(0), "w", SPEC)
    ends(jobs, 0, returns=False)
    jobs.enter("job", 1, 2)
    assert admitted(jobs.register(origin(1), "w", SPEC)) == [(1, True)]


def test_another_group_initialises_a_table_though_the_first_one_is_started_again():
    jobs = SynchronousJobs()
    for group in range(2):
        jobs.enter("job", group, 2)
        jobs.register(origin(group), "w", SPEC)
    jobs.end("job", 0, returns=True)
    assert admitted(jobs.leave("job", 0, lost=True)) == [(1, True)]
    for chunk in range(CHUNKS):
        jobs.initialise(origin(1), "w", chunk, values(4))
    jobs.drop(origin(1, 5), "w")
    jobs.enter("job", 0, 2)
    assert jobs.register(origin(0, 9), "w", SPEC) == [Admitted(origin(0, 9), initialise=False, dropped=True)]


def test_other_terms_replace_an_abandoned_table():
    jobs = jobs_with(1)
    jobs.leave("job", 0, lost=True)
    jobs.enter("job", 0, 1)
    assert admitted(jobs.register(origin(0), "w", TableSpec(LAYOUT, Elastic(0.5), FreeRunning(), 64, 0, 1))) == [
        (0, True)
    ]


@pytest.mark.parametrize(
    ("start", "stop", "payload", "named"),
    [
        (48, 64, values(1), "elements 48:64 are not within the 48 of the buffer"),
        (32, 64, values(1), "elements 32:64 are not within the 48 of the buffer"),
        (16, 16, values(1), "are in 0 chunks"),
        (0, 16, values(1)[:15], "with 1 payloads of 60 bytes, not 1 of 64"),
        (0, 8, values(1), "with 1 payloads of 64 bytes, not 1 of 32"),
        (0, 16, b"", "with 1 payloads of 0 bytes, not 1 of 64"),
        (8, 24, values(1), "2 chunks from 0 on of table 'w' came without their values: with 1 payloads"),
    ],
)
def test_bad_chunks_change_nothing(start, stop, payload, named):
    jobs = jobs_with(2)
    answers, error = requested(jobs, wire.Exchange(1, "w", start, stop), payload)
    assert answers == []
    assert type(error) is (LayoutError if "not within" in named else ProtocolError)
    assert named in str(error)
    jobs.contribute(origin(0), "w", 0, values(1))
    assert told(jobs.contribute(origin(1), "w", 0, values(1)))[0][2] == 2


def test_what_is_not_registered_is_refused():
    jobs = SynchronousJobs()
    with pytest.raises(ServerError, match="group 0 of job 'job' is not there"):
        jobs.pull(origin(0), "w", 0)
    jobs.enter("job", 0, 1)
    with pytest.raises(ServerError, match="no table 'w'"):
        jobs.pull(origin(0), "w", 0)
    jobs.register(origin(0), "w", SPEC)
    with pytest.raises(ServerError, match="not finished"):
        jobs.contribute(origin(0), "w", 0, values(1))


ELASTIC = TableSpec(LAYOUT, Elastic(0.5), FreeRunning(), 64, 0, 1)


def test_a_round_of_one_value_is_told_again_as_it_was():
    jobs = jobs_with(1, ELASTIC)
    for again in range(3):
        assert told(jobs.contribute(origin(0, 1), "w", 0, values(4))) == [(0, 1, 2)], again
    assert told(jobs.pull(origin(0, 2), "w", 0)) == [(0, 2, 2)]
    jobs.settle("job", 0, 1)
    assert told(jobs.contribute(origin(0, 1), "w", 0, values(4))) == [(0, 1, 2)]
    jobs.settle("job", 0, 2)
    assert jobs.contribute(origin(0, 1), "w", 0, values(4)) == []


@pytest.mark.parametrize("groups", [2, 6])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_round_goes_on_without_values_that_are_no_numbers(groups, bad):
    """The others get the mean of the others, whether their values are added up at once or bit by bit."""
    jobs = jobs_with(groups, TableSpec(LAYOUT, Mean(), BulkSynchronous(), 64, 0, 1), check_finite=True)
    outcomes = []
    for group in range(groups):
        brought = values(group)
        if group == 1:
            brought[5] = bad
        outcomes += jobs.contribute(origin(group, 1), "w", 0, brought)
    assert errors(outcomes) == [(1, NotFiniteError)]
    others = [group for group in range(groups) if group != 1]
    mean = np.float32(sum(others)) / np.float32(groups - 1)
    assert told([o for o in outcomes if o.error is None]) == [(group, 1, mean) for group in others]
    for group in range(groups):
        outcomes = jobs.contribute(origin(group, 2), "w", 0, values(3))
    assert told(outcomes) == [(group, 2, 3) for group in range(groups)]


def test_groups_that_must_do_the_same_number_of_rounds_learn_who_does_fewer():
    jobs = jobs_with(3, EQUALLY)
    for group in range(3):
        jobs.contribute(origin(group, 1), "w", 0, values(1))
    jobs.leave("job", 2, lost=True)
    jobs.contribute(origin(0, 2), "w", 0, values(1))
    assert told(jobs.contribute(origin(1, 2), "w", 0, values(1))) == [(0, 2, 2), (1, 2, 2)]
    jobs.leave("job", 1)
    assert errors(jobs.contribute(origin(0, 3), "w", 0, values(1))) == [(0, ServerError)]


@pytest.mark.parametrize("first", ["the end", "the start"])
def test_a_group_that_is_started_again_may_have_more_rounds_left_than_others(first):
    """It goes on from its checkpoint."""
    jobs = jobs_with(2, EQUALLY)
    for group in range(2):
        jobs.contribute(origin(group, 1), "w", 0, values(1))
    if first == "the end":
        jobs.leave("job", 1)
    jobs.leave("job", 0, lost=True)
    jobs.enter("job", 0, 2)
    jobs.register(origin(0, epoch=1), "w", EQUALLY)
    if first == "the start":
        jobs.leave("job", 1)
    assert told(jobs.contribute(origin(0, 1, epoch=1), "w", 0, values(5))) == [(0, 1, 5)]


def test_a_round_that_a_group_has_contributed_to_before_its_end_is_no_error():
    jobs = jobs_with(2, EQUALLY)
    jobs.contribute(origin(1, 1), "w", 0, values(2))
    jobs.leave("job", 1)
    assert (0, 1, 3) in told(jobs.contribute(origin(0, 1), "w", 0, values(1)))
    assert errors(jobs.contribute(origin(0, 2), "w", 0, values(1))) == [(0, ServerError)]


def test_a_table_that_is_dropped_leaves_the_group_s_memory_alone():
    """The value that it had contributed counts, whatever it does with its memory afterwards."""
    jobs = jobs_with(2, EQUALLY)
    mine = values(2)
    jobs.contribute(origin(1, 1), "w", 0, mine, targets=[mine])
    jobs.drop(origin(1), "w")
    mine[:] = 100
    jobs.leave("job", 1, early=True)
    assert told(jobs.contribute(origin(0, 1), "w", 0, values(1)))[-1] == (0, 1, 3)
    assert (mine == 100).all()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("place", [0, BLOCK - 1, BLOCK, BLOCK + 904, 2 * BLOCK - 1])
def test_values_count_up_to_the_block_with_the_first_that_is_no_number(dtype, place):
    """And those of the others everywhere; a sum that is too large is no reason to refuse anybody."""
    layout = Layout.of(dtype, {"a": (2 * BLOCK + 64,)})
    jobs = SynchronousJobs(check_finite=True)
    for group in range(3):
        jobs.enter("job", group, 3)
        jobs.register(origin(group), "w", TableSpec(layout, Mean(), BulkSynchronous(), 1 << 20, 0, 1))
    jobs.initialise(origin(0), "w", 0, None)
    brought = [np.full(2 * BLOCK + 64, group, dtype) for group in (1, 2, 6)]
    brought[1][place:] = np.inf
    brought[0][500] = brought[2][500] = np.finfo(dtype).max
    outcomes = []
    with np.errstate(over="ignore"):
        for group, array in enumerate(brought):
            outcomes += jobs.contribute(origin(group, 1), "w", 0, array)
        is_before = np.arange(2 * BLOCK + 64) // BLOCK < place // BLOCK
        expected = np.where(is_before, (1 + 2 + 6) / 3, (1 + 6) / 2).astype(dtype)
        expected[500] = np.inf
    assert errors(outcomes) == [(1, NotFiniteError)]
    assert f"refused: element {place} is inf;" in str(next(o.error for o in outcomes if o.error))
    for outcome in outcomes:
        if outcome.error is None:
            np.testing.assert_array_equal(outcome.values, expected)


def not_finite(outcomes):
    """(group, places) of each answer that names values that are no numbers."""
    assert all(outcome.error is None for outcome in outcomes)
    return [(outcome.origin.group, [*outcome.not_finite]) for outcome in outcomes if outcome.not_finite]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("place", [0, BLOCK - 1, BLOCK, BLOCK + 904, 2 * BLOCK - 1])
@pytest.mark.parametrize("groups", [3, 6])
@pytest.mark.parametrize("in_place", [False, True])
def test_sums_have_all_values_and_tell_whose_are_no_numbers(dtype, place, groups, in_place):
    """Though answers replace the values, and though the first ones of many groups are added up early."""
    layout = Layout.of(dtype, {"a": (2 * BLOCK + 64,)})
    jobs = SynchronousJobs()
    for group in range(groups):
        jobs.enter("job", group, groups)
        jobs.register(origin(group), "w", TableSpec(layout, Sum(), BulkSynchronous(), 1 << 20, 0, 1))
    jobs.initialise(origin(0), "w", 0, None)
    for request in (1, 2):
        brought = [np.full(2 * BLOCK + 64, group, dtype) for group in range(groups)]
        if request == 1:
            brought[1][[place, -1]] = np.nan, np.inf
            brought[0][500] = brought[2][500] = np.finfo(dtype).max
        outcomes = []
        with np.errstate(over="ignore"):
            expected = sum(brought)
            for group, array in enumerate(brought):
                targets = [array] if in_place else None
                outcomes += jobs.contribute(origin(group, request), "w", 0, array, targets=targets)
        assert not_finite(outcomes) == [(1, [(0, place)])] * (request == 1)
        for array in brought if in_place else [outcome.values for outcome in outcomes]:
            np.testing.assert_array_equal(array, expected)


def test_of_a_group_s_rows_the_one_is_named_that_is_no_number():
    jobs, rows = jobs_with(2), [values(1), values(2), values(3)]
    rows[1][7] = rows[2][3] = np.inf
    chunk = jobs.table(origin(0), "w").chunk(1)
    span = chunk.span
    jobs.contribute(origin(1, 1), "w", 1, values(4))
    outcomes = ran(chunk.contribute(Contribution(origin(0, 1), span, rows, rows)))
    assert not_finite(outcomes) == [(0, [(1, span.start + 7)])]
    for row in rows:
        assert [*np.flatnonzero(row != 10)] == [3, 7]


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_integers_are_all_numbers(dtype):
    layout = Layout.of(dtype, {"w": (48,)})
    jobs = jobs_with(1, TableSpec(layout, Sum(), BulkSynchronous(), 16 * layout.itemsize, 0, 1))
    largest = np.full(16, np.iinfo(dtype).max, dtype)
    assert not_finite(jobs.contribute(origin(0, 1), "w", 0, largest)) == []


def test_what_were_no_numbers_is_told_again():
    jobs = jobs_with(2)
    jobs.contribute(origin(0, 1), "w", 0, values(np.nan))
    jobs.contribute(origin(1, 1), "w", 0, values(2))
    assert not_finite(jobs.contribute(origin(0, 1), "w", 0, values(np.nan))) == [(0, [(0, 0)])]
    assert not_finite(jobs.contribute(origin(1, 1), "w", 0, values(2))) == []
    jobs.contribute(origin(0, 2), "w", 0, values(1))
    assert told(jobs.contribute(origin(1, 2), "w", 0, values(2))) == [(0, 2, 3), (1, 2, 3)]


def test_a_whole_chunk_in_rounds_of_many_parts_names_one_place():
    jobs = jobs_with(2)
    jobs.contribute(origin(0, 1), "w", 0, values(np.nan))
    outcomes = []
    for request, start in enumerate(range(0, 16, 4)):
        outcomes += jobs.contribute(origin(1, request), "w", 0, values(2, 4), start, start + 4)
    assert not_finite(outcomes) == [(0, [(0, 0)])]


def test_a_round_of_no_numbers_leaves_the_centre_as_it_is():
    jobs = jobs_with(1, ELASTIC, initial=7)
    for turn in range(2):
        assert errors(jobs.contribute(origin(0, 1 + turn), "w", 0, values(np.nan))) == [(0, NotFiniteError)]
    assert told(jobs.pull(origin(0, 2), "w", 0)) == [(0, 2, 7)]


def requested(jobs, message, *payloads, group=0):
    """What a request comes to, and the error that it was refused with after that, or None."""
    begun = []
    frames = [memoryview(payload).cast("B") for payload in payloads]
    try:
        for outcome in carry_out(jobs, origin(group, message.request), message, frames, Regions())[1]:
            begun.append(outcome)
    except (NotFiniteError, ProtocolError, LayoutError) as error:
        return ran(begun), error
    return ran(begun), None


def test_what_counted_before_the_rest_of_a_message_was_refused_is_told():
    jobs = jobs_with(2)
    for chunk in (0, 1):
        jobs.contribute(origin(0, 1), "w", chunk, values(1))
    jobs.contribute(origin(1, 1), "w", 1, values(1))
    jobs.contribute(origin(1, 2), "w", 1, values(1))
    told_now, error = requested(jobs, wire.Exchange(3, "w", 0, 32), values(5), values(5), group=1)
    assert "group 1 contributes to chunk 1 twice in one round" in str(error)
    assert told(told_now) == [(0, 1, 6), (1, 3, 6)]


def test_a_refusal_is_told_again():
    jobs = jobs_with(2, check_finite=True)
    jobs.contribute(origin(0, 1), "w", 0, values(np.nan))
    jobs.contribute(origin(1, 1), "w", 0, values(2))
    (again,) = jobs.contribute(origin(0, 1), "w", 0, values(np.nan))
    assert isinstance(again.error, NotFiniteError)
    assert told(jobs.contribute(origin(1, 1), "w", 0, values(2))) == [(1, 1, 2)]
    jobs.contribute(origin(0, 2), "w", 0, values(1))
    assert told(jobs.contribute(origin(1, 2), "w", 0, values(2))) == [(0, 2, 3), (1, 2, 3)]


def test_a_refusal_is_told_when_the_clock_lets_the_group_go_on():
    jobs = jobs_with(2, TableSpec(LAYOUT, SGD(rate=1), BoundedStale(0), 64, 0, 1))
    assert jobs.contribute(origin(0, 1), "w", 0, values(np.nan)) == []
    refused, answered = jobs.contribute(origin(1, 1), "w", 0, values(2))
    assert isinstance(refused.error, NotFiniteError)
    assert told([answered]) == [(1, 1, -2)]


@pytest.mark.parametrize("spec", [SPEC, TableSpec(LAYOUT, Elastic(0.5), FreeRunning(), 64, 0, 1)])
def test_an_answer_that_is_not_kept_any_more_is_an_error(spec):
    jobs = jobs_with(1, spec)
    for request in (1, 2):
        jobs.contribute(origin(0, request), "w", 0, values(1))
    (late,) = jobs.contribute(origin(0, 1), "w", 0, values(1))
    assert "one exchange of a chunk under way" in str(late.error)
    assert len(jobs.contribute(origin(0, 2), "w", 0, values(1))) == 1


@pytest.mark.parametrize("server", [0, 1])
def test_initial_values_that_are_no_numbers_are_refused(server):
    """Nobody is let in to such a centre; the same group may try again."""
    jobs, spec = SynchronousJobs(), msgspec.structs.replace(ELASTIC, server=server, servers=1 + server)
    for group in (0, 1):
        jobs.enter("job", group, 2)
    jobs.register(origin(0), "w", spec, initialise=bool(server))
    if not server:
        jobs.register(origin(1), "w", spec)
    chunks = range(server, CHUNKS, 1 + server)
    for chunk in chunks:
        assert errors(jobs.initialise(origin(0, 1), "w", chunk, values(np.inf))) == [(0, NotFiniteError)]
    with pytest.raises(ServerError, match="not finished registering"):
        jobs.pull(origin(0, 2), "w", server)
    joined = [admitted(jobs.initialise(origin(0, 3), "w", chunk, values(1))) for chunk in chunks]
    assert joined[-1] == ([] if server else [(1, False)])
    assert not any(joined[:-1])
    assert told(jobs.pull(origin(0, 4), "w", server)) == [(0, 4, 1)]


@pytest.mark.parametrize("rule", [Sum(), Mean()])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_sums_pass_values_that_are_no_numbers_on(rule, bad):
    """To all groups, as with every peer; the next round begins without them."""
    jobs = jobs_with(2, msgspec.structs.replace(SPEC, rule=rule))
    jobs.contribute(origin(0, 1), "w", 0, values(bad))
    answers = jobs.contribute(origin(1, 1), "w", 0, values(1))
    assert [answer.error for answer in answers] == [None, None]
    for answer in answers:
        np.testing.assert_array_equal(answer.values, values(bad))
    jobs.contribute(origin(0, 2), "w", 0, values(1))
    shared = 2.0 if isinstance(rule, Sum) and not isinstance(rule, Mean) else 1.0
    assert told(jobs.contribute(origin(1, 2), "w", 0, values(1))) == [(0, 2, shared), (1, 2, shared)]


@pytest.mark.parametrize("check_finite", [False, True])
@pytest.mark.parametrize(
    ("rule", "clock"), [(SGD(rate=1), BulkSynchronous()), (Momentum(rate=1), BulkSynchronous()), (Elastic(0.5), None)]
)
def test_what_groups_share_is_never_poisoned(rule, clock, check_finite):
    """Whatever the setting, only the group that brought such values is told."""
    spec = msgspec.structs.replace(SPEC, rule=rule, clock=clock or FreeRunning())
    jobs = jobs_with(2, spec, initial=8, check_finite=check_finite)
    brought = values(4)
    brought[3] = np.nan
    answers = jobs.contribute(origin(0, 1), "w", 0, brought)
    answers += jobs.contribute(origin(1, 1), "w", 0, values(4))
    assert errors(answers) == [(0, NotFiniteError)]
    assert [(group, request) for group, request, _ in told(answers)] == [(1, 1)]
    (centre,) = jobs.pull(origin(0, 2), "w", 0)
    np.testing.assert_array_equal(centre.values, values(6 if clock is None else 4))


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


def needed(groups=1, spec=SPEC, **options):
    """Bytes that a table is charged with."""
    jobs = SynchronousJobs(**options)
    jobs.enter("job", 0, groups)
    jobs.register(origin(0), "w", spec)
    return jobs.budget.used_bytes


def test_a_table_is_charged_with_its_values_and_its_records():
    assert needed() > LAYOUT.nbytes + CHUNKS * 1024
    assert needed(groups=100) > needed() + CHUNKS * 99 * 32
    states = msgspec.structs.replace(SPEC, rule=Momentum(rate=1))
    assert needed(spec=states) == needed() + LAYOUT.nbytes


def test_what_one_of_many_servers_owns_is_charged_whole():
    """A table of one chunk lies on one server, whatever their number."""
    layout = Layout.of("float32", {"w": (1 << 16,)})
    rule = Foreign(framework="mxnet", optimizer="lamb", states=2, whole_keys=True)
    charged = []
    for server in range(8):
        jobs = SynchronousJobs()
        jobs.enter("job", 0, 1)
        spec = TableSpec(layout, rule, FreeRunning(), layout.nbytes, server, 8)
        jobs.register(origin(0), "w", spec, initialise=True)
        charged.append(jobs.budget.used_bytes)
    assert sum(charge > 3 * layout.nbytes for charge in charged) == 1
    assert sum(charge < layout.nbytes for charge in charged) == 7


@pytest.mark.parametrize("in_turn", [True, False])
def test_what_is_added_up_early_is_charged_until_its_round_ends(in_turn):
    jobs = jobs_with(6, msgspec.structs.replace(SPEC, rule=SGD(rate=1)))
    rules, chunk = ((8, SGD(rate=2)), (16, SGD(rate=3))), jobs.table(origin(0), "w").chunk(0)
    used = []
    for request in range(3):
        for group in range(6) if in_turn else (0, 1, 2, 5, 3, 4):
            ran(chunk.contribute(Contribution(origin(group, request), chunk.span, [values(1)], rules=rules)))
        used.append(jobs.budget.used_bytes)
    assert len({*used}) == 1


def test_groups_may_cut_a_chunk_into_different_parts():
    jobs, whole = jobs_with(2), np.arange(16, dtype=np.float32)
    assert jobs.contribute(origin(0, 1), "w", 1, whole) == []
    (first,) = jobs.contribute(origin(1, 1), "w", 1, values(10), 24, 32)
    np.testing.assert_array_equal(first.values, whole[8:] + 10)
    both = jobs.contribute(origin(1, 2), "w", 1, values(20), 16, 24)
    assert [(answer.origin.group, answer.origin.request) for answer in both] == [(0, 1), (1, 2)]
    np.testing.assert_array_equal(both[0].values, whole + np.repeat([20, 10], 8))
    np.testing.assert_array_equal(both[1].values, whole[:8] + 20)


@pytest.mark.parametrize("parts", [[(0, 16)], [(0, 8), (8, 16)], [(10, 16), (0, 3), (3, 10)]])
@pytest.mark.parametrize("rule", [Sum(), Mean(), Momentum(rate=1)])
def test_what_was_added_up_early_enters_the_rounds_of_all_parts(rule, parts):
    """Four groups send a chunk as a whole over the network: it is added up before the fifth sends it in parts."""
    jobs, expected = (jobs_with(5, msgspec.structs.replace(SPEC, rule=rule)) for _ in range(2))
    whole = np.arange(16, dtype=np.float32)
    for turn in range(2):
        for group in range(4):
            assert jobs.contribute(origin(group, 10 * turn), "w", 0, whole * (group + 1)) == []
        answers = []
        for request, (start, stop) in enumerate(parts):
            last = whole[start:stop] * np.float32(90)
            answers += jobs.contribute(origin(4, 10 * turn + request), "w", 0, last, start, stop)
        assert len(answers) == 4 + len(parts)
        (centre,) = jobs.pull(origin(0, 9), "w", 0)
        for group in range(5):
            plain = expected.contribute_in_place(origin(group, turn), "w", 0, whole * (90 if group == 4 else group + 1))
        np.testing.assert_array_equal(centre.values, expected.pull(origin(0, 9), "w", 0)[0].values)
        assert len(plain) == 5


def test_what_comes_twice_counts_once_though_its_answer_was_settled():
    """A copy that waited in a queue meanwhile."""
    jobs = jobs_with(1, ELASTIC)
    jobs.contribute(origin(0, 1), "w", 0, values(4))
    jobs.settle("job", 0, 2)
    assert jobs.contribute(origin(0, 1), "w", 0, values(4)) == []
    assert told(jobs.pull(origin(0, 3), "w", 0)) == [(0, 3, 2)]


def test_initial_values_that_come_before_the_group_was_asked_for_them_are_refused():
    jobs = Jobs()
    jobs.enter("job", 0, 1)
    (make,) = jobs.register(origin(0, 1), "w", SPEC)
    assert isinstance(make, Task)
    message = wire.Initial(2, "w", 0, 16)
    with pytest.raises(ServerError, match="no table 'w'"):
        [*carry_out(jobs, origin(0, 2), message, [], Regions())]
    assert ran([make]) == [Admitted(origin(0, 1), True)]


def test_a_table_is_freed_when_all_groups_have_dropped_it():
    jobs = jobs_with(3)
    for group in (0, 1):
        assert isinstance(jobs.drop(origin(group, 5), "w")[-1], Answer)
    assert jobs.budget.used_bytes > 0
    jobs.drop(origin(2, 5), "w")
    assert (jobs.budget.used_bytes, [*jobs.tables()]) == (0, [])
    jobs.leave("job", 2, lost=True)
    jobs.enter("job", 2, 3)
    assert jobs.register(origin(2, 6), "w", SPEC) == [Admitted(origin(2, 6), False, dropped=True)]
    with pytest.raises(LayoutError, match="another layout, rule or clock"):
        jobs.register(origin(2, 7), "w", msgspec.structs.replace(SPEC, rule=Mean()))


def test_a_table_that_the_first_group_has_dropped_keeps_its_layout_for_those_that_come():
    """Else a late group with another network would wait for the first one, which has gone on."""
    jobs = SynchronousJobs()
    for group in range(2):
        jobs.enter("job", group, 2)
    jobs.register(origin(0), "w", SPEC)
    for chunk in range(CHUNKS):
        jobs.initialise(origin(0), "w", chunk, values(5))
    jobs.drop(origin(0, 1), "w")
    other = msgspec.structs.replace(SPEC, layout=Layout.of("float64", {"w": (40,)}))
    with pytest.raises(LayoutError, match="float64 instead of float32, from key 'w' on"):
        jobs.register(origin(1), "w", other)
    assert admitted(jobs.register(origin(1), "w", SPEC)) == [(1, False)]


def test_rounds_go_on_without_a_group_that_dropped_the_table():
    jobs = jobs_with(2)
    jobs.contribute(origin(0, 1), "w", 0, values(3))
    assert told(jobs.drop(origin(1, 1), "w")) == [(0, 1, 3), (1, 1, None)]


@pytest.mark.nightly
def test_pulls_of_many_tiny_chunks_are_charged_with_their_records():
    """And refused beyond what the tenant may use, before anything is made."""
    spec = TableSpec(Layout.of("float32", {"w": (1 << 16,)}), Sum(), BulkSynchronous(), 4, 0, 1)
    table_bytes = needed(spec=spec)
    tenant = Budget(table_bytes + (3 << 20), Budget(1 << 40), "me")
    jobs = SynchronousJobs()
    jobs.enter("job", 0, 1, tenant)
    jobs.register(origin(0), "w", spec)
    for start in range(0, 1 << 16, 1024):
        requested(jobs, wire.Initial(1, "w", start, start + 1024))
    held, refused = [], None
    for start in range(0, 1 << 16, 1024):
        before = tenant.used_bytes
        try:
            held += requested(jobs, wire.Pull(2 + start, "w", start, start + 1024))[0]
        except ServerError as error:
            refused = error
            break
        assert tenant.used_bytes - before == 1024 * (4 + ANSWER_BYTES)
    assert "the answer to a pull of table 'w' needs about" in str(refused)
    assert len(held) == 2 * 1024
    held.clear()
    assert tenant.used_bytes <= table_bytes


def test_a_copy_that_comes_late_does_not_count_though_later_parts_were_different():
    jobs = jobs_with(1)
    jobs.contribute(origin(0, 1), "w", 0, values(1), 0, 5)
    jobs.contribute(origin(0, 2), "w", 0, values(2))
    jobs.contribute(origin(0, 3), "w", 0, values(3), 8, 16)
    (late,) = jobs.contribute(origin(0, 1), "w", 0, values(1), 0, 5)
    assert "a later one has counted" in str(late.error)
    np.testing.assert_array_equal(jobs.pull(origin(0, 4), "w", 0)[0].values, np.repeat(np.float32([2, 3]), 8))


def test_a_group_that_is_back_contributes_while_the_round_that_it_left_is_computed():
    jobs = jobs_with(2)
    jobs.contribute(origin(0, 7), "w", 0, values(1))
    jobs.leave("job", 0, lost=True)
    jobs.enter("job", 0, 2)
    assert jobs.register(origin(0, 1, epoch=1), "w", SPEC) == []
    table = jobs.table(origin(1), "w")
    task, joined = table.chunk(0).contribute(Contribution(origin(1, 1), table.chunk_map.whole(0), [values(2)]))
    assert joined == Admitted(origin(0, 1, epoch=1), False)
    assert jobs.contribute(origin(0, 2, epoch=1), "w", 0, values(10)) == []
    assert told(ran([task])) == [(1, 1, 3)]
    assert told(jobs.contribute(origin(1, 2), "w", 0, values(20))) == [(0, 2, 30), (1, 2, 30)]


def test_memory_is_bounded():
    jobs = SynchronousJobs(memory_bytes=2 * needed() - 1)
    jobs.enter("job", 0, 1)
    jobs.register(origin(0), "w", SPEC)
    with pytest.raises(ServerError, match=f"'v' needs about {needed()} bytes.* {needed() - 1} of"):
        jobs.register(origin(0), "v", SPEC)
    jobs.leave("job", 0)
    assert jobs.budget.used_bytes == 0


@pytest.mark.parametrize("in_rack", [False, True])
def test_a_table_that_cannot_be_made_takes_no_memory(in_rack):
    jobs = SynchronousJobs(**({"make_table": RackTable} if in_rack else {}))
    jobs.enter("job", 0, 1)
    with pytest.raises((LayoutError, ServerError), match="chunk_bytes"):
        jobs.register(origin(0), "w", TableSpec(LAYOUT, Sum(), BulkSynchronous(), 2, 0, 1))
    assert jobs.budget.used_bytes == 0


@pytest.mark.parametrize("lost", [False, True])
def test_what_waits_for_a_group_that_never_comes_goes_with_the_job(lost):
    jobs = SynchronousJobs()
    jobs.enter("job", 0, 2)
    jobs.register(origin(0), "w", SPEC)
    for chunk in range(CHUNKS):
        jobs.initialise(origin(0), "w", chunk, values(0))
    jobs.contribute(origin(0, 1), "w", 0, values(1))
    in_place = values(1)
    jobs.contribute_in_place(origin(0, 1), "w", 1, in_place)
    jobs.leave("job", 0, lost)
    jobs.enter("job", 0, 3)  # another number: the tables are not kept
    assert jobs.budget.used_bytes == 0


def test_jobs_that_were_lost_make_room():
    jobs = SynchronousJobs(memory_bytes=2 * needed())
    for job in "abc":
        jobs.enter(job, 0, 1)
        jobs.register(origin(0, job=job), "w", SPEC)
        jobs.leave(job, 0, lost=True)
    jobs.enter("b", 0, 1)
    jobs.enter("a", 0, 1)
    assert admitted(jobs.register(origin(0, 2, job="a"), "w", SPEC)) == [(0, True)]  # in the place of c
    with pytest.raises(ServerError, match="are free"):
        jobs.register(origin(0, 3, job="a"), "v", SPEC)


def test_values_and_answers_are_used_memory():
    tenant = Budget(1 << 20, Budget(1 << 30), "me")
    jobs = SynchronousJobs()
    for group in (0, 1):
        jobs.enter("job", group, 2, tenant)
        jobs.register(origin(group), "w", SPEC)
    for chunk in range(CHUNKS):
        jobs.initialise(origin(0), "w", chunk, None)
    before = tenant.used_bytes
    jobs.contribute(origin(0, 1), "w", 0, values(1))
    assert tenant.used_bytes == before + 64 + CONTRIBUTION_BYTES
    answers = jobs.contribute(origin(1, 1), "w", 0, values(1))
    assert len(answers) == 2
    assert tenant.used_bytes == before + 64 + ANSWER_BYTES  # one answer, for both
    del answers
    assert tenant.used_bytes == before
    jobs.contribute(origin(0, 2), "w", 0, values(1))
    for group in (0, 1):
        jobs.leave("job", group)
    assert [budget.used_bytes for budget in tenant.chain] == [0, 0]


def test_a_table_without_elements_is_complete_at_once():
    jobs = SynchronousJobs()
    spec = TableSpec(Layout.of("float64", {}), Sum(), BulkSynchronous(), 64, 0, 1)
    for group in range(2):
        jobs.enter("job", group, 2)
    assert admitted(jobs.register(origin(0), "w", spec)) == [(0, True)]
    assert admitted(jobs.register(origin(1), "w", spec)) == [(1, False)]


class TestSecondServer:
    """The other servers follow what the first one said."""

    SPEC = TableSpec(LAYOUT, Sum(), BulkSynchronous(), 64, 1, 2)
    CHUNK = 1

    def jobs(self):
        jobs = SynchronousJobs()
        for group in range(2):
            jobs.enter("job", group, 2)
        return jobs

    def test_follows(self):
        jobs = self.jobs()
        assert admitted(jobs.register(origin(1), "w", self.SPEC, initialise=True)) == [(1, True)]
        jobs.initialise(origin(1), "w", self.CHUNK, values(1))
        assert admitted(jobs.register(origin(0), "w", self.SPEC, initialise=False)) == [(0, False)]
        with pytest.raises(ProtocolError, match="chunk 0 .*not on server 1 of 2"):
            jobs.pull(origin(0), "w", 0)

    def test_a_second_initialiser_starts_anew(self):
        jobs = self.jobs()
        jobs.register(origin(1), "w", self.SPEC, initialise=True)
        jobs.initialise(origin(1), "w", self.CHUNK, values(1))
        assert admitted(jobs.register(origin(0), "w", self.SPEC, initialise=True)) == [(0, True)]
        jobs.initialise(origin(0), "w", self.CHUNK, values(2))
        assert told(jobs.pull(origin(0), "w", self.CHUNK)) == [(0, 0, 2)]

    def test_a_table_in_use_is_not_initialised_again(self):
        jobs = self.jobs()
        jobs.register(origin(1), "w", self.SPEC, initialise=True)
        jobs.initialise(origin(1), "w", self.CHUNK, values(1))
        jobs.contribute(origin(1), "w", self.CHUNK, values(1))
        with pytest.raises(ServerError, match="unknown to the first server"):
            jobs.register(origin(0), "w", self.SPEC, initialise=True)

    def test_no_centre_here_is_refused(self):
        with pytest.raises(ServerError, match="no centre here"):
            self.jobs().register(origin(0), "w", self.SPEC, initialise=False)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 4), st.data())
def test_sum_over_any_order_of_arrivals(groups, data):
    """Every round's answer is the sum of the values of that round, whatever the order of chunks and groups."""
    jobs = jobs_with(groups)
    rounds = 2
    left = {(group, chunk): 0 for group in range(groups) for chunk in range(CHUNKS)}
    answered = dict.fromkeys(left, 0)
    while any(count < rounds for count in left.values()):
        able = [key for key in left if left[key] < rounds and left[key] == answered[key]]
        group, chunk = data.draw(st.sampled_from(sorted(able)))
        number = left[group, chunk]
        left[group, chunk] += 1
        for done in jobs.contribute(origin(group, number), "w", chunk, values(10**group + number)):
            assert done.values[0] == sum(10**other + number for other in range(groups))
            answered[done.origin.group, done.chunk] += 1
    assert answered == left


def counted(rounds):
    """What was computed, the slowest group, and how far it is behind, in chunks."""
    return rounds.computed / 16, rounds.lag[0], rounds.lag[1] / 16


def test_rounds_count_values_and_what_was_computed():
    jobs = jobs_with(3)
    rounds = jobs.table(origin(0), "w").rounds
    for chunk in range(2):
        jobs.contribute(origin(0, 1 + chunk), "w", chunk, values(1))
    jobs.contribute(origin(2, 1), "w", 0, values(1))
    assert counted(rounds) == (0, 1, 2)
    jobs.contribute(origin(1, 1), "w", 0, values(1))
    assert counted(rounds) == (1, 1, 1)
    jobs.leave("job", 1, lost=True)
    assert counted(rounds) == (1, 2, 1)
    jobs.leave("job", 2, lost=True)
    assert counted(rounds) == (2, 0, 0)
    jobs.enter("job", 1, 3)
    jobs.register(origin(1), "w", SPEC)
    assert counted(rounds) == (2, 0, 0)
    for group in (0, 1):
        jobs.leave("job", group, lost=True)
    assert rounds.lag == (None, 0)


def test_rounds_count_parts_of_chunks_as_parts_of_values():
    jobs = jobs_with(2)
    rounds = jobs.table(origin(0), "w").rounds
    jobs.contribute(origin(0, 1), "w", 0, values(1))
    jobs.contribute(origin(1, 1), "w", 0, values(1), 0, 4)
    assert counted(rounds) == (0.25, 1, 0.75)
    jobs.contribute(origin(1, 2), "w", 0, values(1), 4, 16)
    assert counted(rounds) == (1, 0, 0)


@pytest.mark.parametrize("clock", [BoundedStale(3), FreeRunning()])
def test_every_value_is_a_round_without_synchrony(clock):
    jobs = jobs_with(2, TableSpec(LAYOUT, SGD(rate=1), clock, 64, 0, 1))
    for request in range(3):
        jobs.contribute(origin(1, request), "w", 0, values(1))
    assert counted(jobs.table(origin(0), "w").rounds) == (3, 0, 3)


@pytest.mark.parametrize("last", ["leaves", "brings NaN"])
def test_values_of_no_group_are_answered_with_what_was_there(last):
    """A rack whose groups were all refused brings the sum of none: nobody is sent memory that was never written."""
    jobs = jobs_with(5, msgspec.structs.replace(SPEC, rule=SGD(rate=1.0)), initial=3.0)
    chunk = jobs.table(origin(0), "w").chunk(0)
    answers = []
    for group in range(4):
        answers += ran(chunk.contribute(Contribution(origin(group, 1), chunk.span, [values(9)], groups=0)))
    assert answers == []
    answers = jobs.leave("job", 4) if last == "leaves" else jobs.contribute(origin(4, 1), "w", 0, values(np.nan))
    assert sorted(told(answers)) == [(group, 1, 3.0) for group in range(4)]
    for answer in answers:
        assert answer.error is not None or (answer.values == 3).all()
