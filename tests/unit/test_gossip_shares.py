"""Shares: whatever is lost, late or given up, they sum to 1 with what is under way."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from hybridps.gossip import Shares

GROUPS = 3
GROUP = st.integers(0, GROUPS - 1)


class Network(RuleBasedStateMachine):
    """Groups that push to each other over a network which delivers late, or not at all."""

    def __init__(self) -> None:
        super().__init__()
        self.shares = [Shares(GROUPS) for _ in range(GROUPS)]
        self.number = 0
        self.pushes: dict[tuple[int, int, int], float] = {}
        """Under way or lost, by sender, receiver and number."""
        self.answers: dict[tuple[int, int, int], bool] = {}
        self.taken_in: dict[tuple[int, int, int], float] = {}
        """Taken in, and the sender does not know yet."""

    @rule(sender=GROUP, further=st.integers(1, GROUPS - 1), parts=st.integers(2, 4))
    def push(self, sender: int, further: int, parts: int) -> None:
        receiver, self.number = (sender + further) % GROUPS, self.number + 1
        share = self.shares[sender].own / parts
        self.shares[sender].give(receiver, self.number, share)
        self.pushes[sender, receiver, self.number] = share

    @rule(data=st.data(), takes=st.booleans())
    def deliver(self, data: st.DataObject, takes: bool) -> None:
        if self.pushes:
            key = data.draw(st.sampled_from(sorted(self.pushes)))
            share = self.pushes.pop(key)
            self.answers[key] = takes
            if takes:
                self.shares[key[1]].receive(share)
                self.taken_in[key] = share

    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        if self.answers:
            key = data.draw(st.sampled_from(sorted(self.answers)))
            sender, receiver, number = key
            if self.answers.pop(key):
                self.taken_in.pop(key)
                self.shares[sender].was_taken(receiver, number)
            else:
                self.shares[sender].was_declined(receiver, number)

    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        known = sorted([*self.pushes, *self.answers])
        if known:
            sender, receiver, number = data.draw(st.sampled_from(known))
            self.shares[sender].give_up(receiver, number)

    @invariant()
    def shares_sum_to_one(self) -> None:
        whole = sum(each.own - each.owed + each.under_way for each in self.shares)
        assert abs(whole - sum(self.taken_in.values()) - 1) < 1e-9
        assert all(each.own > 0 and each.owed >= 0 for each in self.shares)


TestNetwork = Network.TestCase
TestNetwork.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_a_push_that_was_given_up_and_taken_all_the_same_is_paid_back() -> None:
    shares = Shares(2)
    shares.give(1, 1, 0.25)
    shares.give_up(1, 1)
    assert shares.own == 0.5
    shares.was_taken(1, 1)
    assert (shares.own, shares.owed) == (0.25, 0.0)


def test_what_cannot_be_paid_at_once_is_owed() -> None:
    shares = Shares(1)
    shares.give(1, 1, 0.9)
    shares.give_up(1, 1)
    shares.give(1, 2, 0.9)
    shares.was_taken(1, 1)
    assert abs(shares.own - 0.05) < 1e-12
    shares.receive(2.0)
    assert shares.owed == 0.0
    assert abs(shares.own + shares.under_way - (1 + 2.0 - 0.9)) < 1e-12
