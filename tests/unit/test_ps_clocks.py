from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from hybridps.errors import ProtocolError
from hybridps.ps.clocks import BulkSynchronous, FreeRunning


def test_a_round_is_complete_with_the_last_group():
    clock = BulkSynchronous(3)
    assert clock.arrive(1, 0) == (True, False)
    assert clock.arrive(0, 0) == (False, False)
    assert clock.arrive(0, 7) == (True, False)
    assert clock.arrive(2, 0) == (False, True)
    assert clock.arrive(2, 0) == (True, False)


def test_one_group_completes_at_once():
    assert BulkSynchronous(1).arrive(0, 5) == (True, True)


def test_pushing_twice_names_the_group_and_who_is_missing():
    clock = BulkSynchronous(3)
    clock.arrive(1, 4)
    with pytest.raises(ProtocolError, match="group 1 pushes chunk 4 twice.*0, 2"):
        clock.arrive(1, 4)
    clock.arrive(0, 4)
    assert clock.arrive(2, 4).complete


def test_a_stranger_is_refused():
    for clock in BulkSynchronous(2), FreeRunning(2):
        with pytest.raises(ProtocolError, match="group 2 takes no part"):
            clock.arrive(2, 0)


def test_leaving_completes_the_rounds_that_waited_for_it():
    clock = BulkSynchronous(3)
    for chunk in (5, 3, 4):
        clock.arrive(0, chunk)
    clock.arrive(1, 5)
    clock.arrive(1, 3)
    assert clock.leave(2) == (3, 5)
    assert clock.leave(1) == (4,)
    assert clock.arrive(0, 0) == (True, True)


def test_what_the_leaving_group_brought_stays():
    clock = BulkSynchronous(2)
    clock.arrive(1, 0)
    assert clock.leave(1) == ()
    assert clock.arrive(0, 0) == (False, True)


def test_a_late_group_joins_between_rounds():
    clock = BulkSynchronous(2)
    clock.leave(1)
    clock.join(1)
    assert clock.members == {0, 1}
    clock.arrive(0, 0)
    clock.leave(1)
    clock.join(2)
    assert clock.members == {0, 2}


def test_joining_waits_for_the_rounds_under_way():
    clock = BulkSynchronous(3)
    clock.arrive(2, 0)
    clock.leave(2)
    clock.join(2)
    assert clock.members == {0, 1}
    with pytest.raises(ProtocolError, match="group 2 takes no part"):
        clock.arrive(2, 0)
    clock.arrive(0, 0)
    assert clock.arrive(1, 0).complete
    assert clock.members == {0, 1, 2}


def test_rounds_are_void_when_everybody_left():
    clock = BulkSynchronous(2)
    clock.arrive(0, 0)
    clock.leave(1)
    clock.arrive(0, 1)
    assert clock.leave(0) == ()
    clock.join(0)
    assert clock.arrive(0, 0) == (True, True)


def test_free_running_completes_each_arrival():
    clock = FreeRunning(2)
    assert [clock.arrive(group, 0) for group in (0, 0, 1)] == [(True, True)] * 3
    assert clock.leave(1) == ()
    with pytest.raises(ProtocolError, match="group 1"):
        clock.arrive(1, 0)
    clock.join(1)
    assert clock.arrive(1, 0).complete


class BulkSynchronousMachine(RuleBasedStateMachine):
    """Against a model: per chunk, which groups came; a round ends when no member is missing."""

    chunks = st.integers(0, 2)
    groups = st.integers(0, 3)

    def __init__(self):
        super().__init__()
        self.clock = BulkSynchronous(3)
        self.members, self.joining = {0, 1, 2}, set()
        self.came: dict[int, set[int]] = {}

    def ended(self, chunk):
        complete = chunk in self.came and self.members <= self.came[chunk]
        if complete:
            del self.came[chunk]
        return complete

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
        first = chunk not in self.came
        self.came.setdefault(chunk, set()).add(group)
        assert self.clock.arrive(group, chunk) == (first, self.ended(chunk))
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
        assert self.clock.leave(group) == tuple(chunk for chunk in sorted(self.came) if self.ended(chunk))
        self.admit()

    @invariant()
    def members_agree(self):
        assert self.clock.members == self.members

    @invariant()
    def every_open_round_waits_for_a_member(self):
        assert all(self.members - came for came in self.came.values())


TestBulkSynchronousMachine = BulkSynchronousMachine.TestCase
TestBulkSynchronousMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
