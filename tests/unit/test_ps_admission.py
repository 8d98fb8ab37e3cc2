"""Tenants share a server by bytes, as `hybridps.ps.server.admission` states; without transport and time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hybridps.ps.server.admission import MESSAGE_BYTES, Account, Budget, FairQueue

COSTS = st.lists(st.integers(0, 1 << 22), min_size=1, max_size=60)


def flooding(queue, name, costs):
    account = Account(name, Budget())
    for cost in costs:
        queue.put(account, cost, 100)
    return account


@given(st.lists(COSTS, min_size=2, max_size=5))
def test_backlogged_tenants_are_served_alike(floods):
    """As long as two tenants have messages, what they were served differs by their largest ones at most."""
    queue = FairQueue()
    accounts = {flooding(queue, str(number), costs): costs for number, costs in enumerate(floods)}
    served = dict.fromkeys(accounts, 0)
    while all(account.waiting for account in accounts):
        account, cost = queue.take(0.0)
        queue.charge(account, cost, 0.0)
        served[account] += cost + MESSAGE_BYTES
        for one in accounts:
            for other in accounts:
                most = max(accounts[one]) + max(accounts[other]) + 2 * MESSAGE_BYTES
                assert abs(served[one] - served[other]) <= most


@given(COSTS, st.lists(st.lists(st.integers(0, 1 << 22), min_size=200, max_size=200), min_size=1, max_size=3))
def test_a_message_waits_for_its_own_bytes_and_two_messages_of_each_other(own, floods):
    """A tenant that sends one message after the other, beside floods."""
    queue = FairQueue()
    accounts = [flooding(queue, str(number), costs) for number, costs in enumerate(floods)]
    victim = Account("victim", Budget())
    before = 0
    for cost in own:
        queue.put(victim, cost, 100)
        waited = dict.fromkeys(accounts, 0)
        while (found := queue.take(0.0))[0] is not victim:
            account, theirs = found
            queue.charge(account, theirs, 0.0)
            waited[account] += theirs + MESSAGE_BYTES
            if not all(account.waiting for account in accounts):
                return
        for account, costs in zip(accounts, floods, strict=True):
            assert waited[account] <= before + 2 * (max(costs) + MESSAGE_BYTES)
        queue.charge(victim, cost, 0.0)
        before = cost + MESSAGE_BYTES


def test_a_tenant_gets_no_credit_for_the_time_it_was_away():
    queue = FairQueue()
    busy = flooding(queue, "busy", [1000] * 20)
    for _ in range(10):
        queue.charge(*queue.take(0.0), 0.0)
    back = flooding(queue, "back", [1000] * 10)
    order = []
    while busy.waiting and back.waiting:
        account, cost = queue.take(0.0)
        queue.charge(account, cost, 0.0)
        order.append(account.name)
    assert abs(order.count("busy") - order.count("back")) <= 1


def test_many_small_messages_are_no_advantage():
    """They are charged for what a message takes beside its payload."""
    queue = FairQueue()
    small, large = flooding(queue, "small", [0] * 1000), flooding(queue, "large", [1 << 20] * 5)
    taken = []
    while large.waiting:
        account, cost = queue.take(0.0)
        queue.charge(account, cost, 0.0)
        taken.append(account)
    assert taken.count(small) <= 5 * ((1 << 20) // MESSAGE_BYTES + 2)
