"""Random runs of a server's tables against a plain reference, bit for bit.

Messages are reordered, doubled, dropped and sent again, groups leave and join, and the owners of the chunks work when
they please.
"""

from __future__ import annotations

from collections import deque

import numpy as np
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hybridps.memory import Layout
from hybridps.ps.clocks import BulkSynchronous
from hybridps.ps.rules import Momentum
from hybridps.ps.shard import Shard
from hybridps.ps.terms import Done, Joined, Terms, Ticket, Work

CHUNKS, LENGTH, OWNERS = 2, 16, 2
LAYOUT = Layout.of("float32", {"w": (CHUNKS * LENGTH,)})


class Reference:
    """The server, plainly: one value of each member makes a round; who leaves is not waited for."""

    def __init__(self, groups, start):
        self.rule = Momentum(rate=0.1, weight_decay=0.01)
        self.members, self.joining = set(range(groups)), set()
        self.centre = [start.copy() for _ in range(CHUNKS)]
        self.velocity = [np.zeros(LENGTH, np.float32) for _ in range(CHUNKS)]
        self.came = [{} for _ in range(CHUNKS)]
        self.answers = {}
        """By group, chunk and number of the request: what the group must be told."""

    def arrive(self, group, chunk, number, values):
        self.came[chunk][group] = (number, values)
        self.complete(chunk)

    def complete(self, chunk):
        came = self.came[chunk]
        if not came or not self.members <= set(came):
            return
        total = np.zeros(LENGTH, np.float32)
        for position, group in enumerate(sorted(came)):
            total = came[group][1].copy() if position == 0 else total + came[group][1]
        numbers = tuple(map(np.float32, self.rule.numbers(1, len(came))))
        self.rule.complete_(self.centre[chunk], total, [self.velocity[chunk]], numbers)
        for group, (number, _) in came.items():
            self.answers[group, chunk, number] = self.centre[chunk].copy()
        came.clear()
        self.admit()

    def leave(self, group):
        self.members.discard(group)
        self.joining.discard(group)
        for chunk in range(CHUNKS):
            if self.members:
                self.complete(chunk)
            else:
                self.came[chunk].clear()
        self.admit()

    def join(self, group):
        if group not in self.members:
            self.joining.add(group)
            self.admit()

    def admit(self):
        if not any(self.came):
            self.members |= self.joining
            self.joining.clear()


class Client:
    """A group: per chunk one request at a time, which it may send again; in shared memory or over the network."""

    def __init__(self, group, in_place):
        self.group, self.in_place = group, in_place
        self.number = 0
        self.joined = False
        self.counted = [0] * CHUNKS
        """The latest request that the server has seen of each chunk."""
        self.open = {}
        """By chunk: number of the request, its values, and where the answer is to be."""


class Machine(RuleBasedStateMachine):
    @initialize(groups=st.integers(1, 6), in_place=st.lists(st.booleans(), min_size=6, max_size=6))
    def begin(self, groups, in_place):
        self.groups, self.in_place = groups, in_place
        self.rng = np.random.default_rng(0)
        start = self.rng.standard_normal(LENGTH).astype(np.float32)
        self.reference = Reference(groups, start)
        terms = Terms(LAYOUT, self.reference.rule, BulkSynchronous(), 4 * LENGTH, 0, 1)
        self.terms, self.shard = terms, Shard(owners=OWNERS)
        self.queues = [deque() for _ in range(OWNERS)]
        self.network, self.answers = [], []
        self.clients = {}
        for group in range(groups):
            self.enter(group)
        for chunk in range(CHUNKS):
            self.take(self.table().initialise(Ticket("job", 0, 0), chunk, start))
        self.work_all()
        assert all(client.joined for client in self.clients.values())

    def table(self):
        return self.shard.table(Ticket("job", next(iter(self.clients)), 0), "w")

    def enter(self, group):
        self.clients[group] = Client(group, self.in_place[group])
        self.shard.enter("job", group, self.groups)
        self.take(self.shard.register(Ticket("job", group, 0), "w", self.terms))

    def take(self, outcomes):
        for outcome in outcomes:
            match outcome:
                case Work():
                    self.queues[outcome.owner].append(outcome)
                case Joined(ticket=ticket):
                    self.clients[ticket.group].joined = True
                case Done():
                    self.answers.append(outcome)

    def work_all(self):
        for owner in range(OWNERS):
            while self.queues[owner]:
                self.do_work(owner)

    def do_work(self, owner):
        work = self.queues[owner].popleft()
        work.run()
        self.take(work.done)

    def deliver(self, message):
        group, chunk, number, values, target = message
        client = self.clients.get(group)
        if client is None or not client.joined:
            return
        if number > client.counted[chunk]:
            client.counted[chunk] = number
            self.reference.arrive(group, chunk, number, values.copy())
        ticket = Ticket("job", group, number)
        if target is None:
            self.take(self.table().exchange(ticket, chunk, values.copy()))
        else:
            self.take(self.table().exchange_in_place(ticket, chunk, [values], [target]))

    @rule(data=st.data())
    def send(self, data):
        able = [(c, chunk) for c in self.clients.values() if c.joined for chunk in range(CHUNKS) if chunk not in c.open]
        if able:
            self.ask(*data.draw(st.sampled_from(able)))

    def ask(self, client, chunk):
        client.number += 1
        values = self.rng.standard_normal(LENGTH).astype(np.float32)
        client.open[chunk] = (client.number, values, values if client.in_place else None)
        self.network.append((client.group, chunk, *client.open[chunk]))

    @precondition(lambda self: self.network)
    @rule(data=st.data(), doubled=st.booleans())
    def arrive(self, data, doubled):
        place = data.draw(st.integers(0, len(self.network) - 1))
        self.deliver(self.network[place] if doubled else self.network.pop(place))

    @precondition(lambda self: self.network)
    @rule(data=st.data())
    def drop(self, data):
        self.network.pop(data.draw(st.integers(0, len(self.network) - 1)))

    @rule(data=st.data())
    def send_again(self, data):
        opened = [(c.group, chunk) for c in self.clients.values() for chunk in c.open]
        if opened:
            group, chunk = data.draw(st.sampled_from(opened))
            self.network.append((group, chunk, *self.clients[group].open[chunk]))

    @precondition(lambda self: any(self.queues))
    @rule(data=st.data())
    def work(self, data):
        self.do_work(data.draw(st.sampled_from([owner for owner in range(OWNERS) if self.queues[owner]])))

    @precondition(lambda self: self.answers)
    @rule(data=st.data(), lost=st.booleans())
    def answer(self, data, lost):
        done = self.answers.pop(data.draw(st.integers(0, len(self.answers) - 1)))
        if not lost:
            self.hear(done)

    def hear(self, done):
        client = self.clients.get(done.ticket.group)
        number, values, target = client.open.get(done.chunk, (None, None, None)) if client else (None, None, None)
        if number != done.ticket.request:
            return
        found = target if target is not None else done.values
        np.testing.assert_array_equal(found, self.reference.answers[client.group, done.chunk, number])
        del client.open[done.chunk]
        self.network = [m for m in self.network if m[:3] != (client.group, done.chunk, number) or m[4] is None]
        values[:] = np.nan  # nobody may need them any more

    @precondition(lambda self: len(self.clients) > 1)
    @rule(data=st.data())
    def leave(self, data):
        self.remove(data.draw(st.sampled_from(sorted(self.clients))))

    def remove(self, group):
        self.take(self.shard.leave("job", group, lost=True))
        self.reference.leave(group)
        self.work_all()
        for _, values, _ in self.clients.pop(group).open.values():
            values[:] = np.nan
        self.network = [message for message in self.network if message[0] != group]
        self.answers = [done for done in self.answers if done.ticket.group != group]

    @precondition(lambda self: len(self.clients) < self.groups)
    @rule(data=st.data())
    def join(self, data):
        self.add(data.draw(st.sampled_from(sorted(set(range(self.groups)) - set(self.clients)))))

    def add(self, group):
        self.reference.join(group)
        self.enter(group)

    @invariant()
    def members_agree(self):
        for group, client in getattr(self, "clients", {}).items():
            assert client.joined == (group in self.reference.members)

    def teardown(self):
        """When nothing is lost any more, every request is answered, and the centre is the reference's."""
        if not hasattr(self, "clients"):
            return
        for _ in range(2 * self.groups + 2):
            for client in list(self.clients.values()):
                for chunk in range(CHUNKS):
                    if client.joined and chunk in client.open:
                        self.deliver((client.group, chunk, *client.open[chunk]))
                    elif client.joined and any(chunk in other.open for other in self.clients.values()):
                        client.number += 1
                        values = self.rng.standard_normal(LENGTH).astype(np.float32)
                        client.open[chunk] = (client.number, values, None)
                        self.deliver((client.group, chunk, *client.open[chunk]))
            self.work_all()
            while self.answers:
                self.hear(self.answers.pop())
        assert not any(client.open for client in self.clients.values())
        self.check_centre()

    def check_centre(self):
        member = next((group for group, client in self.clients.items() if client.joined), None)
        if member is None:
            return
        for chunk in range(CHUNKS):
            (work,) = self.table().pull(Ticket("job", member, 1 << 40), chunk)
            work.run()
            np.testing.assert_array_equal(work.done[0].values, self.reference.centre[chunk])


TestMachine = Machine.TestCase
# Explaining a failure traces every line: it takes longer than a test may, and the timeout hides the failure.
TestMachine.settings = settings(
    max_examples=150,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.reuse, Phase.generate, Phase.shrink],
)


def test_values_of_a_void_round_are_never_added():
    """All members leave a round while a group waits for its end: nothing of it enters the next one."""
    machine = Machine()
    machine.begin(groups=5, in_place=[False] * 6)
    machine.remove(2)
    machine.ask(machine.clients[1], 0)
    machine.deliver(machine.network.pop())
    machine.add(2)
    assert not machine.clients[2].joined
    for group in (0, 1, 3, 4):
        machine.remove(group)
    for group in (0, 3, 4):
        machine.add(group)
    machine.members_agree()
    machine.ask(machine.clients[2], 0)
    machine.teardown()
