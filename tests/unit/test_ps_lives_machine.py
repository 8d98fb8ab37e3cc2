"""The life of a server, step by step: groups come, bring parts of a chunk, go, and the process is killed at any line.

A model in NumPy says what the centre is, and who is answered.
"""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test
from synchronous_jobs import errors, origin
from test_ps_lives import LENGTH, SPEC, Lives, dying_at

from hybridps.ps.clocks import BulkSynchronous, FreeRunning
from hybridps.ps.model import Answer

GROUPS = 3
EDGES = [*range(0, LENGTH + 1, LENGTH // 4)]
FILES = ("rules/rule.py", "progress.py", "journal.py", "area.py", "chunks/memory.py", "rounds.py", "exchange.py")


class Brought:
    """A contribution that is not answered. `left`: which of its elements have not counted."""

    def __init__(self, group, epoch, request, number, start, stop):
        self.group, self.epoch, self.request, self.number = group, epoch, request, number
        self.start, self.stop = start, stop
        self.left = np.zeros(LENGTH, bool)
        self.left[start:stop] = True
        self.is_gone = False


class LivesMachine(RuleBasedStateMachine):
    """Groups of one table."""

    clock = BulkSynchronous()

    def __init__(self):
        super().__init__()
        self.lives = Lives(GROUPS, msgspec.structs.replace(SPEC, clock=self.clock))
        self.members = {*range(GROUPS)}
        self.joining = set()
        self.epochs = dict.fromkeys(range(GROUPS), 0)
        self.requests = 0
        self.brought = []
        self.centre = np.zeros(LENGTH)

    def teardown(self):
        self.lives.__exit__()

    # the model

    def _count(self, admits=True):
        """Complete rounds count; who is answered."""
        while True:
            waiting = [each for each in self.brought if each.left.any()]
            if isinstance(self.clock, FreeRunning):
                whole = np.ones(LENGTH, bool)
            else:
                whole = np.zeros(LENGTH, bool)
                for each in waiting:
                    whole |= each.left
                for group in self.members:
                    whole &= np.any([each.left for each in waiting if each.group == group] + [whole & False], axis=0)
            if not waiting or not whole.any():
                break
            for each in waiting:
                self.centre[each.left & whole] -= each.number
                each.left &= ~whole
        if admits and not any(each.left.any() for each in self.brought):
            self.members |= self.joining
            self.joining.clear()
        done = [each for each in self.brought if not each.left.any()]
        self.brought = [each for each in self.brought if each.left.any()]
        return [each for each in done if not each.is_gone]

    def _check(self, outcomes, answered):
        """The answers are those of the model."""
        assert errors(outcomes) == []
        found = {
            (each.origin.group, each.origin.epoch, each.origin.request): each.values
            for each in outcomes
            if isinstance(each, Answer)
        }
        assert found.keys() == {(each.group, each.epoch, each.request) for each in answered}
        for each in answered:
            values = found[each.group, each.epoch, each.request]
            np.testing.assert_array_equal(values, self.centre[each.start : each.stop])
        np.testing.assert_array_equal(self.lives.centre, self.centre)

    def _send(self, each):
        who = origin(each.group, each.request, epoch=each.epoch)
        row = np.full(each.stop - each.start, each.number, np.float32)
        return self.lives.jobs.contribute(who, "w", 0, row, each.start, each.stop)

    def _make(self, data):
        """A contribution that a group may bring, or None."""
        group = data.draw(st.sampled_from(sorted(self.members)), "group")
        start, stop = sorted(data.draw(st.lists(st.sampled_from(EDGES), min_size=2, max_size=2, unique=True), "part"))
        mine = [each for each in self.brought if each.group == group and not each.is_gone]
        if any(each.start < stop and start < each.stop for each in mine):
            return None
        self.requests += 1
        number = data.draw(st.integers(1, 3), "number")
        made = Brought(group, self.epochs[group], self.requests, number, start, stop)
        self.brought.append(made)
        return made

    def _begin_again(self, unread):
        """The next process gets again what was not answered, or whose answer was not read."""
        self.lives.jobs.keep(idle=True)
        self.lives.kill(present=self.members | self.joining)
        self.brought = [each for each in self.brought if not each.is_gone]
        outcomes = [outcome for each in (*unread, *self.brought) for outcome in self._send(each)]
        self._check(outcomes, [*unread, *self._count(admits=False)])
        for group in self.members | self.joining:
            self.lives.jobs.be_back("job", group)
        # Groups that wait until no round is under way may have been let in, or wait for the next one.
        (_, table), *_ = self.lives.jobs.tables()
        assert self.members <= table.rounds.members <= self.members | (set() if self.brought else self.joining)
        self.joining -= table.rounds.members
        self.members = {*table.rounds.members}

    # what happens

    @rule(data=st.data())
    def bring(self, data):
        made = self._make(data)
        if made is not None:
            outcomes = self._send(made)
            self._check(outcomes, self._count())

    @rule(data=st.data())
    def bring_and_kill(self, data):
        """Nobody reads the answers of the process."""
        made = self._make(data)
        if made is not None:
            self._send(made)
            self._begin_again(self._count())

    @precondition(lambda self: not self.joining and not any(each.is_gone for each in self.brought))
    @rule(data=st.data(), line=st.integers(1, 250))
    def bring_and_die(self, data, line):
        """Not while a group waits for the end of the round: it may be let in before that is computed."""
        made = self._make(data)
        if made is not None:
            dying_at(line, FILES, lambda: self._send(made))
            self._begin_again(self._count())

    @rule()
    def kill(self):
        self._begin_again([])

    @rule(data=st.data())
    def send_again(self, data):
        mine = [each for each in self.brought if not each.is_gone]
        if mine:
            assert self._send(data.draw(st.sampled_from(mine), "again")) == []

    @precondition(lambda self: len(self.members) > 1)
    @rule(data=st.data())
    def leave(self, data):
        group = data.draw(st.sampled_from(sorted(self.members)), "group")
        outcomes = self.lives.jobs.leave("job", group, lost=True)
        self.members.discard(group)
        for each in self.brought:
            each.is_gone |= each.group == group
        self._check(outcomes, self._count())

    @precondition(lambda self: len(self.members | self.joining) < GROUPS)
    @rule(data=st.data())
    def come_back(self, data):
        group = data.draw(st.sampled_from(sorted({*range(GROUPS)} - self.members - self.joining)), "group")
        self.epochs[group] += 1
        self.requests += 1
        self.lives.jobs.enter("job", group, GROUPS)
        self.lives.jobs.register(origin(group, self.requests, epoch=self.epochs[group]), "w", self.spec)
        self.joining.add(group)
        self._check([], self._count())

    @property
    def spec(self):
        return msgspec.structs.replace(SPEC, clock=self.clock)


class FreeLivesMachine(LivesMachine):
    """The same of groups that do not wait for one another."""

    clock = FreeRunning()


@pytest.mark.parametrize("machine", [LivesMachine, FreeLivesMachine])
def test_lives(machine):
    run_state_machine_as_test(machine, settings=settings(max_examples=30, stateful_step_count=25))


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("machine", [LivesMachine, FreeLivesMachine])
def test_many_lives(machine):
    run_state_machine_as_test(machine, settings=settings(max_examples=500, stateful_step_count=60))
