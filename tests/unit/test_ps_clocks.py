from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from hybridps.errors import ProtocolError
from hybridps.ps.clocks import BoundedStale, BulkSynchronous, FreeRunning, Verdict

NOTHING = Verdict()


def round_of(*groups):
    """These groups make a round, and are answered."""
    return Verdict(groups, groups)


def test_a_round_is_complete_with_the_last_group():
    clock = BulkSynchronous().start(3)
    assert clock.arrive(1, 0) == NOTHING
    assert clock.arrive(0, 0) == NOTHING
    assert clock.arrive(0, 7) == NOTHING
    assert clock.arrive(2, 0) == round_of(0, 1, 2)
    assert clock.arrive(2, 0) == NOTHING


def test_one_group_completes_at_once():
    assert BulkSynchronous().start(1).arrive(0, 5) == round_of(0)


def test_pushing_twice_names_the_group_and_who_is_missing():
    clock = BulkSynchronous().start(3)
    clock.arrive(1, 4)
    with pytest.raises(ProtocolError, match="group 1 pushes chunk 4 twice.*0, 2"):
        clock.arrive(1, 4)
    clock.arrive(0, 4)
    assert clock.arrive(2, 4) == round_of(0, 1, 2)


def test_a_stranger_is_refused():
    for clock in BulkSynchronous().start(2), FreeRunning().start(2):
        with pytest.raises(ProtocolError, match="group 2 takes no part"):
            clock.arrive(2, 0)


def test_leaving_completes_the_rounds_that_waited_for_it():
    clock = BulkSynchronous().start(3)
    for chunk in (5, 3, 4):
        clock.arrive(0, chunk)
    clock.arrive(1, 5)
    clock.arrive(1, 3)
    assert clock.leave(2) == ((3, round_of(0, 1)), (5, round_of(0, 1)))
    assert clock.leave(1) == ((4, round_of(0)),)
    assert clock.arrive(0, 0) == round_of(0)


def test_what_the_leaving_group_brought_stays():
    clock = BulkSynchronous().start(2)
    clock.arrive(1, 0)
    assert clock.leave(1) == ()
    assert clock.arrive(0, 0) == round_of(0, 1)


def test_a_late_group_joins_between_rounds():
    clock = BulkSynchronous().start(2)
    clock.leave(1)
    clock.join(1)
    assert clock.members == {0, 1}
    clock.arrive(0, 0)
    clock.leave(1)
    clock.join(2)
    assert clock.members == {0, 2}


def test_joining_waits_for_the_rounds_under_way():
    clock = BulkSynchronous().start(3)
    clock.arrive(2, 0)
    clock.leave(2)
    clock.join(2)
    assert clock.members == {0, 1}
    with pytest.raises(ProtocolError, match="group 2 takes no part"):
        clock.arrive(2, 0)
    clock.arrive(0, 0)
    assert clock.arrive(1, 0) == round_of(0, 1, 2)
    assert clock.members == {0, 1, 2}


def test_rounds_are_void_when_everybody_left():
    clock = BulkSynchronous().start(2)
    clock.arrive(0, 0)
    clock.leave(1)
    clock.arrive(0, 1)
    assert clock.leave(0) == ()
    clock.join(0)
    assert clock.arrive(0, 0) == round_of(0)


def test_free_running_completes_each_arrival():
    clock = FreeRunning().start(2)
    assert [clock.arrive(group, 0) for group in (0, 0, 1)] == [round_of(0), round_of(0), round_of(1)]
    assert clock.leave(1) == ()
    with pytest.raises(ProtocolError, match="group 1"):
        clock.arrive(1, 0)
    clock.join(1)
    assert clock.arrive(1, 0) == round_of(1)


class BulkSynchronousMachine(RuleBasedStateMachine):
    """Against a model: per chunk, which groups came; a round ends when no member is missing."""

    chunks = st.integers(0, 2)
    groups = st.integers(0, 3)

    def __init__(self):
        super().__init__()
        self.clock = BulkSynchronous().start(3)
        self.members, self.joining = {0, 1, 2}, set()
        self.came: dict[int, set[int]] = {}

    def ended(self, chunk):
        if chunk in self.came and self.members <= self.came[chunk]:
            return round_of(*sorted(self.came.pop(chunk)))
        return NOTHING

    def admit(self):
        if not self.came:
            self.members |= self.joining
            self.joining = set()

    @rule(group=groups, chunk=chunks)
    def arrive(self, group, chunk):
        if group not in self.members or group in self.came.get(chunk, ()):
            with pytest.raises(ProtocolError, match=f"group {group}"):
                self.clock.arrive(group, chunk)
            return
        self.came.setdefault(chunk, set()).add(group)
        assert self.clock.arrive(group, chunk) == self.ended(chunk)
        self.admit()

    @rule(group=groups)
    def join(self, group):
        self.clock.join(group)
        self.joining |= {group} - self.members
        self.admit()

    @precondition(lambda self: self.members)
    @rule(group=groups)
    def leave(self, group):
        self.members.discard(group)
        self.joining.discard(group)
        if not self.members:
            self.came.clear()
        verdicts = [(chunk, self.ended(chunk)) for chunk in sorted(self.came)]
        assert self.clock.leave(group) == tuple(pair for pair in verdicts if pair[1] != NOTHING)
        self.admit()

    @invariant()
    def members_agree(self):
        assert self.clock.members == self.members

    @invariant()
    def every_open_round_waits_for_a_member(self):
        assert all(self.members - came for came in self.came.values())


TestBulkSynchronousMachine = BulkSynchronousMachine.TestCase
TestBulkSynchronousMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_a_group_is_answered_while_nobody_is_too_far_behind():
    clock = BoundedStale(1).start(2)
    assert clock.arrive(0, 0) == Verdict((0,), (0,))
    assert clock.arrive(0, 0) == Verdict((0,), ())
    with pytest.raises(ProtocolError, match="group 0 pushes chunk 0 twice.*to come: 1"):
        clock.arrive(0, 0)
    assert clock.arrive(0, 3) == Verdict((0,), (0,))
    assert clock.arrive(1, 0) == Verdict((1,), (0, 1))


def test_with_no_bound_all_are_answered_together():
    clock = BoundedStale(0).start(3)
    assert clock.arrive(2, 0) == Verdict((2,), ())
    assert clock.arrive(0, 0) == Verdict((0,), ())
    assert clock.arrive(1, 0) == Verdict((1,), (0, 1, 2))


def test_leaving_releases_those_that_waited_for_it():
    clock = BoundedStale(0).start(3)
    clock.arrive(0, 4)
    clock.arrive(1, 4)
    clock.arrive(1, 2)
    assert clock.leave(2) == ((4, Verdict((), (0, 1))),)
    assert clock.leave(0) == ((2, Verdict((), (1,))),)


def test_a_late_group_begins_where_the_slowest_is():
    clock = BoundedStale(1).start(2)
    clock.leave(1)
    for _ in range(5):
        assert clock.arrive(0, 0) == Verdict((0,), (0,))
    clock.join(1)
    assert clock.arrive(0, 0) == Verdict((0,), (0,))
    assert clock.arrive(0, 0) == Verdict((0,), ())
    assert clock.arrive(1, 0) == Verdict((1,), (0, 1))


class BoundedStaleMachine(RuleBasedStateMachine):
    """Against a model: a group is answered when it is at most `bound` values ahead of every member."""

    chunks = st.integers(0, 1)
    groups = st.integers(0, 3)

    def __init__(self):
        super().__init__()
        self.bound = 2
        self.clock = BoundedStale(self.bound).start(3)
        self.members = {0, 1, 2}
        self.count = {chunk: dict.fromkeys(self.members, 0) for chunk in range(2)}
        self.waiting = {chunk: set() for chunk in range(2)}

    def released(self, chunk):
        free = {
            group
            for group in self.waiting[chunk]
            if all(self.count[chunk][group] - self.count[chunk][other] <= self.bound for other in self.members)
        }
        self.waiting[chunk] -= free
        return tuple(sorted(free))

    @rule(group=groups, chunk=chunks)
    def arrive(self, group, chunk):
        if group not in self.members or group in self.waiting[chunk]:
            with pytest.raises(ProtocolError, match=f"group {group}"):
                self.clock.arrive(group, chunk)
            return
        self.count[chunk][group] += 1
        self.waiting[chunk].add(group)
        assert self.clock.arrive(group, chunk) == Verdict((group,), self.released(chunk))

    @rule(group=groups)
    def join(self, group):
        self.clock.join(group)
        if group not in self.members:
            for count in self.count.values():
                count[group] = min((count[other] for other in self.members), default=0)
            self.members.add(group)

    @rule(group=groups)
    def leave(self, group):
        self.members.discard(group)
        for waiting in self.waiting.values():
            waiting.discard(group)
        verdicts = [(chunk, self.released(chunk)) for chunk in range(2)]
        assert self.clock.leave(group) == tuple((chunk, Verdict((), free)) for chunk, free in verdicts if free)

    @invariant()
    def the_slowest_never_waits(self):
        for chunk, waiting in self.waiting.items():
            if self.members:
                slowest = min(self.members, key=lambda group: self.count[chunk][group])
                assert slowest not in waiting


TestBoundedStaleMachine = BoundedStaleMachine.TestCase
TestBoundedStaleMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
