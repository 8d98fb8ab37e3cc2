"""The clocks as state machines: whole chunks as ever, and parts of chunks."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from hybridps.errors import ProtocolError
from hybridps.ps.clocks import BoundedStale, BulkSynchronous, FreeRunning, Part, Verdict

LENGTH = 8
"""Of a chunk."""


def whole(group):
    return Part(group, 0, LENGTH)


def parts(*groups):
    return tuple(whole(group) for group in groups)


def round_of(*groups):
    """These groups make a round of a whole chunk, and are answered."""
    return Verdict(0, LENGTH, parts(*groups), parts(*groups))


def test_a_round_is_complete_with_the_last_group():
    clock = BulkSynchronous().start(range(3))
    assert clock.arrive(whole(1), 0) == []
    assert clock.arrive(whole(0), 0) == []
    assert clock.arrive(whole(0), 7) == []
    assert clock.arrive(whole(2), 0) == [round_of(0, 1, 2)]
    assert clock.arrive(whole(2), 0) == []


def test_one_group_completes_at_once():
    assert BulkSynchronous().start(range(1)).arrive(whole(0), 5) == [round_of(0)]


def test_contributing_twice_names_the_group_and_who_is_missing():
    clock = BulkSynchronous().start(range(3))
    clock.arrive(whole(1), 4)
    for again in (whole(1), Part(1, 3, 5)):
        with pytest.raises(ProtocolError, match="group 1 contributes to chunk 4 twice.*0, 2"):
            clock.arrive(again, 4)
    clock.arrive(whole(0), 4)
    assert clock.arrive(whole(2), 4) == [round_of(0, 1, 2)]


def test_a_stranger_is_refused():
    for clock in BulkSynchronous().start(range(2)), BoundedStale().start(range(2)), FreeRunning().start(range(2)):
        with pytest.raises(ProtocolError, match="group 2 takes no part"):
            clock.arrive(whole(2), 0)


def test_leaving_completes_the_rounds_that_waited_for_it():
    clock = BulkSynchronous().start(range(3))
    for chunk in (5, 3, 4):
        clock.arrive(whole(0), chunk)
    clock.arrive(whole(1), 5)
    clock.arrive(whole(1), 3)
    assert clock.leave(2) == [(3, round_of(0, 1)), (5, round_of(0, 1))]
    assert clock.leave(1) == [(4, round_of(0))]
    assert clock.arrive(whole(0), 0) == [round_of(0)]


def test_what_the_leaving_group_brought_stays():
    clock = BulkSynchronous().start(range(2))
    clock.arrive(whole(1), 0)
    assert clock.leave(1) == []
    assert clock.arrive(whole(0), 0) == [round_of(0, 1)]


def test_a_late_group_joins_between_rounds():
    clock = BulkSynchronous().start(range(2))
    clock.leave(1)
    clock.join(1)
    assert clock.members == {0, 1}
    clock.arrive(whole(0), 0)
    clock.leave(1)
    clock.join(2)
    assert clock.members == {0, 2}


def test_joining_waits_for_the_rounds_under_way():
    clock = BulkSynchronous().start(range(3))
    clock.arrive(whole(2), 0)
    clock.leave(2)
    clock.join(2)
    assert clock.members == {0, 1}
    with pytest.raises(ProtocolError, match="group 2 takes no part"):
        clock.arrive(whole(2), 0)
    clock.arrive(whole(0), 0)
    assert clock.arrive(whole(1), 0) == [round_of(0, 1, 2)]
    assert clock.members == {0, 1, 2}


def test_rounds_are_void_when_everybody_left():
    clock = BulkSynchronous().start(range(2))
    clock.arrive(whole(0), 0)
    clock.leave(1)
    clock.arrive(whole(0), 1)
    assert clock.leave(0) == []
    clock.join(0)
    assert clock.arrive(whole(0), 0) == [round_of(0)]


def test_free_running_completes_each_arrival():
    clock = FreeRunning().start(range(2))
    assert [clock.arrive(whole(group), 0) for group in (0, 0, 1)] == [[round_of(0)], [round_of(0)], [round_of(1)]]
    assert clock.leave(1) == []
    with pytest.raises(ProtocolError, match="group 1"):
        clock.arrive(whole(1), 0)
    clock.join(1)
    assert clock.arrive(whole(1), 0) == [round_of(1)]


def test_one_group_may_send_in_pieces_what_another_sends_as_a_whole():
    clock = BulkSynchronous().start(range(2))
    first, second = Part(1, 0, 3), Part(1, 3, 8)
    assert clock.arrive(whole(0), 0) == []
    assert clock.arrive(second, 0) == [Verdict(3, 8, (whole(0), second), (second,))]
    assert clock.arrive(first, 0) == [Verdict(0, 3, (whole(0), first), (whole(0), first))]


def test_an_element_has_one_contribution_of_a_group_until_that_is_answered():
    """Also where its round is computed already: the rest of the contribution is still under way."""
    clock = BulkSynchronous().start(range(2))
    clock.arrive(whole(0), 0)
    clock.arrive(Part(1, 0, 4), 0)
    with pytest.raises(ProtocolError, match="group 0 contributes to chunk 0 twice"):
        clock.arrive(Part(0, 0, 4), 0)
    assert clock.arrive(Part(1, 4, 8), 0)[0].answer == (whole(0), Part(1, 4, 8))
    assert clock.arrive(Part(0, 0, 4), 0) == []


def test_a_part_that_was_half_computed_stays_when_its_group_leaves():
    clock = BulkSynchronous().start(range(3))
    clock.arrive(whole(2), 0)
    for group in (0, 1):
        clock.arrive(Part(group, 0, 4), 0)
    assert clock.leave(2) == []
    clock.arrive(Part(0, 4, 8), 0)
    (verdict,) = clock.arrive(Part(1, 4, 8), 0)
    assert verdict == Verdict(4, 8, (Part(0, 4, 8), Part(1, 4, 8), whole(2)), (Part(0, 4, 8), Part(1, 4, 8), whole(2)))


class BulkSynchronousMachine(RuleBasedStateMachine):
    """Against a model that knows elements only: of each, who has brought a value to its round, and which part it was.

    Groups cut chunks into random disjoint parts, leave and join. Each element's i-th round has exactly one value of
    every member, and those of groups that left meanwhile; a part is answered once, when all of its elements are done.
    """

    chunks = st.integers(0, 1)
    groups = st.integers(0, 3)

    def __init__(self):
        super().__init__()
        self.clock = BulkSynchronous().start(range(3))
        self.members, self.joining = {0, 1, 2}, set()
        self.came = {(chunk, element): {} for chunk in range(2) for element in range(LENGTH)}
        """Of each element, the parts by group whose values wait for its round."""
        self.undone = {}
        """Of each part that is not answered, by chunk, the elements whose rounds are not computed."""

    def expected(self, chunk):
        """Elements of the chunk whose rounds are complete now, with the parts that make them."""
        rounds = {}
        for element in range(LENGTH):
            came = self.came[chunk, element]
            if came and self.members and self.members <= came.keys():
                rounds[element] = tuple(sorted(came.values()))
        return rounds

    def check(self, chunk, verdicts):
        """The verdicts are the rounds that the model expects, each element once; parts are answered when done."""
        expected = self.expected(chunk)
        for verdict in verdicts:
            for element in range(verdict.start, verdict.stop):
                assert expected.pop(element) == verdict.apply
                self.came[chunk, element].clear()
                for part in verdict.apply:
                    self.undone[chunk, part].remove(element)
            done = tuple(part for part in verdict.apply if not self.undone[chunk, part])
            assert verdict.answer == done
            for part in done:
                del self.undone[chunk, part]
        assert not expected
        self.admit()

    def admit(self):
        if not any(self.came.values()):
            self.members |= self.joining
            self.joining = set()

    @rule(group=groups, chunk=chunks, edges=st.sets(st.integers(0, LENGTH), min_size=2, max_size=2))
    def arrive(self, group, chunk, edges):
        part = Part(group, *sorted(edges))
        elements = range(part.start, part.stop)
        own = [other for where, other in self.undone if (where, other.group) == (chunk, group)]
        if group not in self.members or any(other.start < part.stop and part.start < other.stop for other in own):
            with pytest.raises(ProtocolError, match=f"group {group}"):
                self.clock.arrive(part, chunk)
            return
        self.undone[chunk, part] = set(elements)
        for element in elements:
            assert group not in self.came[chunk, element]
            self.came[chunk, element][group] = part
        self.check(chunk, self.clock.arrive(part, chunk))

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
            for came in self.came.values():
                came.clear()
            self.undone.clear()
        verdicts = self.clock.leave(group)
        assert [chunk for chunk, _ in verdicts] == sorted(chunk for chunk, _ in verdicts)
        for chunk in range(2):
            self.check(chunk, [verdict for where, verdict in verdicts if where == chunk])

    @invariant()
    def members_agree(self):
        assert self.clock.members == self.members

    @invariant()
    def every_open_round_waits_for_a_member(self):
        assert all(self.members - came.keys() for came in self.came.values() if came)


TestBulkSynchronousMachine = BulkSynchronousMachine.TestCase
TestBulkSynchronousMachine.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)


def computed(group, *answered):
    return [Verdict(0, LENGTH, parts(group), parts(*answered))]


def test_a_group_is_answered_while_nobody_is_too_far_behind():
    clock = BoundedStale(1).start(range(2))
    assert clock.arrive(whole(0), 0) == computed(0, 0)
    assert clock.arrive(whole(0), 0) == computed(0)
    with pytest.raises(ProtocolError, match="group 0 contributes to chunk 0 twice.*to come: 1"):
        clock.arrive(whole(0), 0)
    assert clock.arrive(whole(0), 3) == computed(0, 0)
    assert clock.arrive(whole(1), 0) == computed(1, 0, 1)


def test_with_no_bound_all_are_answered_together():
    clock = BoundedStale(0).start(range(3))
    assert clock.arrive(whole(2), 0) == computed(2)
    assert clock.arrive(whole(0), 0) == computed(0)
    assert clock.arrive(whole(1), 0) == computed(1, 0, 1, 2)


def test_leaving_releases_those_that_waited_for_it():
    clock = BoundedStale(0).start(range(3))
    clock.arrive(whole(0), 4)
    clock.arrive(whole(1), 4)
    clock.arrive(whole(1), 2)
    assert clock.leave(2) == [(4, Verdict(0, LENGTH, (), parts(0, 1)))]
    assert clock.leave(0) == [(2, Verdict(0, LENGTH, (), parts(1)))]


def test_a_late_group_begins_where_the_slowest_is():
    clock = BoundedStale(1).start(range(2))
    clock.leave(1)
    for _ in range(5):
        assert clock.arrive(whole(0), 0) == computed(0, 0)
    clock.join(1)
    assert clock.arrive(whole(0), 0) == computed(0, 0)
    assert clock.arrive(whole(0), 0) == computed(0)
    assert clock.arrive(whole(1), 0) == computed(1, 0, 1)


def test_values_are_counted_element_by_element():
    """One group sends in parts what another sends as a whole."""
    clock = BoundedStale(0).start(range(2))
    first, second = Part(1, 0, 3), Part(1, 3, 8)
    assert clock.arrive(second, 0) == [Verdict(3, 8, (second,))]
    assert clock.arrive(whole(0), 0) == [Verdict(0, 8, (whole(0),)), Verdict(3, 8, (), (second,))]
    with pytest.raises(ProtocolError, match="group 0 contributes to chunk 0 twice"):
        clock.arrive(Part(0, 0, 1), 0)
    assert clock.arrive(first, 0) == [Verdict(0, 3, (first,), (first,)), Verdict(0, 8, (), (whole(0),))]


def test_a_chunk_is_not_cut_into_any_number_of_parts(monkeypatch):
    monkeypatch.setattr("hybridps.ps.clocks.stale.MOST_CELLS", 2)
    clock = BoundedStale(100).start(range(1))
    clock.arrive(Part(0, 0, 1), 0)
    clock.arrive(Part(0, 4, 5), 0)
    with pytest.raises(ProtocolError, match="group 0 cuts chunk 0 into more than 2 parts"):
        clock.arrive(Part(0, 2, 3), 0)


class BoundedStaleMachine(RuleBasedStateMachine):
    """Against a model: a part is answered when its group is at most `bound` values ahead of every member, in all of
    the part's elements."""

    chunks = st.integers(0, 1)
    groups = st.integers(0, 3)

    def __init__(self):
        super().__init__()
        self.bound = 2
        self.clock = BoundedStale(self.bound).start(range(3))
        self.members = {0, 1, 2}
        self.count = {
            (chunk, element): dict.fromkeys(self.members, 0) for chunk in range(2) for element in range(LENGTH)
        }
        self.waiting = {chunk: set() for chunk in range(2)}

    def is_free(self, chunk, part):
        counts = [self.count[chunk, element] for element in range(part.start, part.stop)]
        return all(count[part.group] - min(count.values()) <= self.bound for count in counts)

    def check(self, chunk, verdicts, part=None):
        """A part that came is computed; those that are free now are answered, each with others of its elements."""
        free = {known for known in self.waiting[chunk] if self.is_free(chunk, known)}
        self.waiting[chunk] -= free
        if part is not None:
            first, *verdicts = verdicts
            assert first == Verdict(*part[1:], (part,), tuple(sorted(p for p in free if p[1:] == part[1:])))
            free -= {*first.answer}
        assert all(not verdict.apply and {p[1:] for p in verdict.answer} == {verdict[:2]} for verdict in verdicts)
        assert sorted(p for verdict in verdicts for p in verdict.answer) == sorted(free)

    @rule(group=groups, chunk=chunks, edges=st.sets(st.integers(0, LENGTH), min_size=2, max_size=2))
    def arrive(self, group, chunk, edges):
        part = Part(group, *sorted(edges))
        mine = [known for known in self.waiting[chunk] if known.group == group]
        is_twice = any(known.start < part.stop and part.start < known.stop for known in mine)
        if group not in self.members or is_twice:
            with pytest.raises(ProtocolError, match=f"group {group}"):
                self.clock.arrive(part, chunk)
            return
        for element in range(part.start, part.stop):
            self.count[chunk, element][group] += 1
        self.waiting[chunk].add(part)
        self.check(chunk, self.clock.arrive(part, chunk), part)

    @rule(group=groups)
    def join(self, group):
        self.clock.join(group)
        if group not in self.members:
            for count in self.count.values():
                count[group] = min(count.values(), default=0)
            self.members.add(group)

    @rule(group=groups)
    def leave(self, group):
        self.members.discard(group)
        for count in self.count.values():
            count.pop(group, None)
        for chunk, waiting in self.waiting.items():
            self.waiting[chunk] = {part for part in waiting if part.group != group}
        told = self.clock.leave(group)
        for chunk in range(2):
            self.check(chunk, [verdict for of, verdict in told if of == chunk])


TestBoundedStaleMachine = BoundedStaleMachine.TestCase
TestBoundedStaleMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
