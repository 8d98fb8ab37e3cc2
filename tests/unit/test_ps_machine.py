"""Random runs of a server's tables against a plain reference, bit for bit.

Groups cut chunks into parts as they please. Messages are reordered, doubled, dropped and sent again, groups leave and
join, and the owners of the chunks work when they please.
"""

from __future__ import annotations

import contextlib
from collections import deque

import numpy as np
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from synchronous_jobs import do

from hybridps.errors import ProtocolError
from hybridps.memory import Layout
from hybridps.ps.chunk_map import Span
from hybridps.ps.clocks import BulkSynchronous
from hybridps.ps.model import Admitted, Answer, Contribution, Origin, TableSpec, Task
from hybridps.ps.rules import Momentum, apply_
from hybridps.ps.server.tables.jobs import Jobs

CHUNKS, LENGTH, OWNERS = 2, 16, 2
ELEMENTS = CHUNKS * LENGTH
LAYOUT = Layout.of("float32", {"w": (ELEMENTS,)})
SPANS = [(0, LENGTH), (0, LENGTH), (0, 5), (0, 8), (3, 9), (5, 8), (8, LENGTH), (9, 10), (10, LENGTH)]
"""Parts of a chunk that a group may send."""


class Reference:
    """The server, plainly, element by element: one value of each member makes a round; who leaves is not waited for."""

    def __init__(self, groups, start):
        self.rule = Momentum(rate=0.1, weight_decay=0.01)
        self.members, self.joining = set(range(groups)), set()
        self.centre, self.velocity = start.copy(), np.zeros(ELEMENTS, np.float32)
        self.came = [{} for _ in range(ELEMENTS)]
        """Of each element, by group: the life of the group, the number of the request, and the value."""
        self.answers = {}
        """By life of a group and number of the request: what the group must be told, by element."""

    def arrive(self, client, span, number, values):
        for element in range(span.start, span.stop):
            value = values[element - span.start : element - span.start + 1]
            assert client.group not in self.came[element]
            self.came[element][client.group] = (client.life, number, value)
        self.complete()

    def complete(self):
        for element, came in enumerate(self.came):
            if came and self.members and self.members <= came.keys():
                at = slice(element, element + 1)
                rows = [came[group][2] for group in sorted(came)]
                apply_(self.rule, rows, [], self.centre[at], [self.velocity[at]], step=1, contributions=len(rows))
                for life, number, _ in came.values():
                    self.answers.setdefault((life, number), {})[element] = self.centre[element]
                came.clear()
        self.admit()

    def leave(self, group):
        self.members.discard(group)
        self.joining.discard(group)
        if not self.members:
            for came in self.came:
                came.clear()
        self.complete()

    def join(self, group):
        if group not in self.members:
            self.joining.add(group)
            self.admit()

    def admit(self):
        if not any(self.came):
            self.members |= self.joining
            self.joining.clear()


class Client:
    """A group: of an element one request at a time, which it may send again; in shared memory or over the network."""

    def __init__(self, group, in_place, life):
        self.group, self.in_place, self.life = group, in_place, life
        self.number = 0
        self.joined = False
        self.seen = set()
        """The requests that the server has seen."""
        self.open = {}
        """By number of the request: its span, its values, and where the answer is to be."""

    def is_free(self, span):
        return not any(span.start < other.stop and other.start < span.stop for other, _, _ in self.open.values())


class Machine(RuleBasedStateMachine):
    @initialize(groups=st.integers(1, 6), in_place=st.lists(st.booleans(), min_size=6, max_size=6))
    def begin(self, groups, in_place):
        self.groups, self.in_place = groups, in_place
        self.rng = np.random.default_rng(0)
        start = self.rng.standard_normal(ELEMENTS).astype(np.float32)
        self.reference = Reference(groups, start)
        spec = TableSpec(LAYOUT, self.reference.rule, BulkSynchronous(), 4 * LENGTH, 0, 1)
        self.spec, self.jobs = spec, Jobs(threads=OWNERS)
        self.queues = [deque() for _ in range(OWNERS)]
        self.network, self.answers = [], []
        self.clients, self.lives = {}, 0
        for group in range(groups):
            self.enter(group)
        self.work_all()
        for span in self.table().chunk_map.spans(0, 0, ELEMENTS):
            self.take(self.table().initialise(Origin("job", 0, 0, 0), span, start[span.start : span.stop]))
        self.work_all()
        assert all(client.joined for client in self.clients.values())

    def table(self):
        return self.jobs.table(Origin("job", next(iter(self.clients)), 0, 0), "w")

    def enter(self, group):
        self.lives += 1
        self.clients[group] = Client(group, self.in_place[group], self.lives)
        self.jobs.enter("job", group, self.groups)
        self.take(self.jobs.register(Origin("job", group, self.lives, 0), "w", self.spec))

    def take(self, outcomes):
        for outcome in outcomes:
            match outcome:
                case Task():
                    self.queues[outcome.owner].append(outcome)
                case Admitted(origin=origin):
                    self.clients[origin.group].joined = True
                case Answer():
                    self.answers.append(outcome)

    def work_all(self):
        while any(self.queues):
            for owner in range(OWNERS):
                while self.queues[owner]:
                    self.do_work(owner)

    def do_work(self, owner):
        self.take(do(self.queues[owner].popleft()))

    def deliver(self, message):
        group, number, span, values, target = message
        client = self.clients.get(group)
        if client is None or not client.joined:
            return
        is_new = number not in client.seen
        if is_new:
            client.seen.add(number)
            self.reference.arrive(client, span, number, values.copy())
        sent = ([values], [target]) if target is not None else ([values.copy()], None)
        # What comes late, after a later one, is refused.
        with contextlib.nullcontext() if is_new else contextlib.suppress(ProtocolError):
            contribution = Contribution(Origin("job", group, client.life, number), span, *sent)
            self.take(self.table().chunk(span.chunk).contribute(contribution))

    @rule(data=st.data())
    def send(self, data):
        joined = [client for client in self.clients.values() if client.joined]
        if joined:
            client = joined[data.draw(st.integers(0, len(joined) - 1))]
            chunk, (start, stop) = data.draw(st.integers(0, CHUNKS - 1)), data.draw(st.sampled_from(SPANS))
            span = Span(chunk, chunk * LENGTH + start, chunk * LENGTH + stop)
            if client.is_free(span):
                self.ask(client, span)

    def ask(self, client, span):
        client.number += 1
        values = self.rng.standard_normal(span.length).astype(np.float32)
        client.open[client.number] = (span, values, values if client.in_place else None)
        self.network.append((client.group, client.number, *client.open[client.number]))

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
        opened = [(c.group, number) for c in self.clients.values() for number in c.open]
        if opened:
            group, number = data.draw(st.sampled_from(opened))
            self.network.append((group, number, *self.clients[group].open[number]))

    @precondition(lambda self: any(self.queues))
    @rule(data=st.data())
    def work(self, data):
        self.do_work(data.draw(st.sampled_from([owner for owner in range(OWNERS) if self.queues[owner]])))

    @precondition(lambda self: self.answers)
    @rule(data=st.data(), lost=st.booleans())
    def answer(self, data, lost):
        answer = self.answers.pop(data.draw(st.integers(0, len(self.answers) - 1)))
        if not lost:
            self.hear(answer)

    def hear(self, answer):
        group, number = answer.origin.group, answer.origin.request
        client = self.clients.get(group)
        if client is None or client.life != answer.origin.epoch or number not in client.open:
            return
        span, values, target = client.open.pop(number)
        assert answer.error is None
        expected = self.reference.answers[client.life, number]
        assert sorted(expected) == [*range(span.start, span.stop)]
        found = target if target is not None else answer.values
        np.testing.assert_array_equal(found, [expected[element] for element in range(span.start, span.stop)])
        self.network = [m for m in self.network if m[:2] != (group, number) or m[4] is None]
        values[:] = np.nan  # nobody may need them any more

    @precondition(lambda self: len(self.clients) > 1)
    @rule(data=st.data())
    def leave(self, data):
        self.remove(data.draw(st.sampled_from(sorted(self.clients))))

    def remove(self, group):
        self.take(self.jobs.leave("job", group, lost=True))
        self.reference.leave(group)
        self.work_all()
        for _, values, _ in self.clients.pop(group).open.values():
            values[:] = np.nan
        self.network = [message for message in self.network if message[0] != group]
        self.answers = [answer for answer in self.answers if answer.origin.group != group]

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
        for _ in range(2 * self.groups + 2 + ELEMENTS):
            for client in [*self.clients.values()]:
                if client.joined:
                    self.go_on(client)
            self.work_all()
            while self.answers:
                self.hear(self.answers.pop())
            if not any(client.open for client in self.clients.values()):
                break
        assert not any(client.open for client in self.clients.values())
        self.check_centre()

    def go_on(self, client):
        """Send again what is under way, and bring what others wait for."""
        for number in [*client.open]:
            self.deliver((client.group, number, *client.open[number]))
        wanted = {e for other in self.clients.values() for span, _, _ in other.open.values() for e in span_of(span)}
        for span in client_spans(client, wanted):
            self.ask(client, span)
            self.deliver(self.network.pop())

    def check_centre(self):
        member = next((group for group, client in self.clients.items() if client.joined), None)
        if member is None:
            return
        for span in self.table().chunk_map.spans(0, 0, ELEMENTS):
            task = self.table().chunk(span.chunk).arrays.pull(Origin("job", member, 0, 1 << 40))
            (answer,) = do(task)
            np.testing.assert_array_equal(answer.values, self.reference.centre[span.start : span.stop])


def span_of(span):
    return range(span.start, span.stop)


def client_spans(client, wanted):
    """The elements that others wait for and the client has not under way, one by one."""
    own = {element for span, _, _ in client.open.values() for element in span_of(span)}
    return [Span(element // LENGTH, element, element + 1) for element in sorted(wanted - own)]


TestMachine = Machine.TestCase
# Shrinking or explaining a failure takes longer than a test may, and the timeout hides the failure.
TestMachine.settings = settings(
    max_examples=80,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.reuse, Phase.generate],
)


def test_values_of_a_void_round_are_never_added():
    """All members leave a round while a group waits for its end: nothing of it enters the next one."""
    machine = Machine()
    machine.begin(groups=5, in_place=[False] * 6)
    machine.remove(2)
    machine.ask(machine.clients[1], Span(0, 0, LENGTH))
    machine.deliver(machine.network.pop())
    machine.add(2)
    assert not machine.clients[2].joined
    for group in (0, 1, 3, 4):
        machine.remove(group)
    for group in (0, 3, 4):
        machine.add(group)
    machine.members_agree()
    machine.ask(machine.clients[2], Span(0, 0, LENGTH))
    machine.teardown()
