"""A tenant that sends anything at all: the server stays, its memory is bounded, and others compute the same bits."""

from __future__ import annotations

import math
import os
import re
import socket as sockets
import subprocess
import sys
import threading
import time
import tracemalloc
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from types import SimpleNamespace

import msgspec
import numpy as np
import psutil
import pytest
import zmq
from in_thread import in_thread
from synchronous_jobs import SynchronousJobs, admitted, origin

from hybridps.config import Settings
from hybridps.errors import ServerError
from hybridps.memory import Layout
from hybridps.ps import wire
from hybridps.ps.client import Client, silent_groups
from hybridps.ps.clocks import BulkSynchronous
from hybridps.ps.keys import AllowList, Credentials, Quotas, make_tenant
from hybridps.ps.model import TableSpec, Task
from hybridps.ps.rules import Elastic, Momentum, Sum, warm_up
from hybridps.ps.server import Server
from hybridps.ps.server.admission import Account, Accounts, Budget
from hybridps.ps.server.members import FAIR_READS, Member, Members
from hybridps.ps.server.profiles import PAGE_BYTES, PROFILE_BYTES
from hybridps.ps.server.requests import Regions, carry_out
from hybridps.ps.server.tables.jobs import Jobs
from hybridps.shared_memory import place_of, shared_memory

pytestmark = pytest.mark.timeout(100)

LAYOUT = Layout.of("float32", {"w": (600,), "b": (40,)})
SPEC = TableSpec(LAYOUT, Sum(), BulkSynchronous(), 1024, 0, 1)
QUOTA_BYTES = 64 << 20
"""What the hostile tenant may use."""
BESIDE_BYTES = 96 << 20
"""What its connections may take beside that: answers it has not read, and what an allocator keeps."""
SOCKETS = 8
BURST = 32
MESSAGES_OF_A_SOCKET = 2000
STUCK_MILLISECONDS = 2000
"""After this the socket that reads no answers is given up if it takes no message. ZeroMQ finds out by reading that a
server has been killed: a socket that holds as many answers as it may does not, and never connects again."""
LAST = 1 << 61
"""Number of a request after which a socket sends nothing."""

HUGE = (b"\xdf\xff\xff\xff\xff", b"\xdd\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff", b"\xc6\x7f\xff\xff\xff")
"""msgpack's beginnings of a map, an array, a text and bytes of the greatest length."""
STRANGE = (
    None, True, -1, 0, 1, 3, 1 << 31, 1 << 62, 1 << 63, (1 << 64) - 1, -(1 << 63), 1.5, float("nan"), float("inf"), "",
    "w", "a/b", "\n", "x" * 300, b"", b"\xff", [], [[]], {}, {"": None}, "Leave", "Hello", "float64", "object",
)  # fmt: skip


# What is said by tenants that mean well


class Recording(Server):
    """A server that keeps what it is sent."""

    def __init__(self):
        super().__init__(threads=1)
        self.heard = []
        read = self._loop.read

        def record(identity, frames):
            self.heard.append([frame.bytes for frame in frames])
            read(identity, frames)

        self._loop.read = record


@pytest.fixture(scope="module")
def recorded():
    """The messages of two groups that use everything there is."""
    server = Recording()
    settings = Settings(chunk_bytes=1024, heartbeat_seconds=0.005, group_sizes=(1, 1))
    with in_thread(server), ThreadPoolExecutor(2) as pool:
        held = list(pool.map(lambda group: use_everything(server.address, group, settings), range(2)))
    kinds = {type(wire.decode_request(frames[0])) for frames in server.heard}
    assert kinds == set(wire.Request.__args__)
    yield server.heard
    del held  # the memory that is offered in them


def ask(address, message):
    """The answer to a message that comes alone."""
    with zmq.Context.instance().socket(zmq.DEALER) as socket:
        socket.connect(address)
        socket.send(wire.encode(message))
        assert socket.poll(10_000)
        return wire.decode_answer(socket.recv())


def use_everything(address, group, settings):
    with Client([address], job="job", group=group, groups=2, settings=settings) as store:
        store.profile("run")
        store.session.send(0, wire.Back())
        given = ask(address, wire.AskToJoin(wire.VERSION, "job", (1,)))
        end = wire.EndOfGroup(wire.VERSION, "job", given.numbers[0], 0, given.ticket)
        assert ask(address, end) == wire.Alive()
        silent_groups([address], store.session.number, 60.0, settings)
        values = np.arange(LAYOUT.length, dtype=np.float32)
        shared = shared_memory(LAYOUT.nbytes).view(np.float32)
        for table, rule in (("w", Sum()), ("e", Elastic(0.5)), ("m", Momentum(rate=0.1))):
            store.register(table, LAYOUT, values, rule)
            store.exchange(table, values, values.copy(), 0, LAYOUT.length).wait()
            store.exchange(table, shared, shared, 0, LAYOUT.length).wait()
            store.pull(table, values.copy())
            if rule.states:
                rules = ((64, Momentum(rate=0.2)), (LAYOUT.length, Momentum(rate=0.3)))
                store.exchange(table, values, values.copy(), 0, LAYOUT.length, rules).wait()
                store.put(table, values, 1)
            store.drop(table)
        store.register("d", LAYOUT, None, Sum())
        for _ in range(2):  # the memory of the first exchange is released, and withdrawn in the second one
            released = shared_memory(LAYOUT.nbytes).view(np.float32)
            store.exchange("d", released, released, 0, LAYOUT.length).wait()
            del released
        store.read_profile(0)
        assert store.meet(30.0) is not None
        store.session.ask("meeting", [0], lambda request, _: wire.Meet(request, 1, {1 - group: 0})).wait()
    return shared


# What is made of it


class Mutations:
    """Messages from recorded ones, always the same for a seed."""

    def __init__(self, recorded, seed):
        self._recorded = recorded
        self._rng = np.random.default_rng(seed)
        self._ways = (self.replayed, self.flipped, self.cut, self.swapped, self.more, self.fewer, self.huge, self.typed)

    def pick(self, options):
        return options[self._rng.integers(len(options))]

    def next(self):
        frames = [*self.pick(self._recorded)]
        for _ in range(self._rng.integers(1, 3)):
            frames = self.pick(self._ways)(frames)
        return frames or [b""]

    def replayed(self, frames):
        return frames

    def flipped(self, frames):
        place = self._rng.integers(len(frames))
        frame = np.frombuffer(frames[place], np.uint8).copy()
        if len(frame):
            for bit in self._rng.integers(0, 8 * len(frame), self._rng.integers(1, 9)):
                frame[bit // 8] ^= 1 << (bit % 8)
        return [*frames[:place], frame.tobytes(), *frames[place + 1 :]]

    def cut(self, frames):
        place = self._rng.integers(len(frames))
        frame = frames[place]
        return [*frames[:place], frame[: self._rng.integers(len(frame) + 1)], *frames[place + 1 :]]

    def swapped(self, frames):
        return [frames[place] for place in self._rng.permutation(len(frames))]

    def more(self, frames):
        others = self.pick(self._recorded)
        added = self.pick((b"", self._rng.bytes(self._rng.integers(3000)), self.pick(others), frames[-1]))
        return frames + [added] * int(self._rng.integers(1, 6))

    def fewer(self, frames):
        return frames[: self._rng.integers(len(frames))] or frames

    def huge(self, frames):
        place = self._rng.integers(len(frames[0]) + 1)
        return [frames[0][:place] + self.pick(HUGE) + frames[0][place:], *frames[1:]]

    def typed(self, frames):
        """Another value for a field, however deep."""
        try:
            message = msgspec.msgpack.decode(frames[0])
        except (msgspec.MsgspecError, ValueError):
            return frames
        inside = message
        while isinstance(inside, (dict, list)) and inside:
            keys = [*inside] if isinstance(inside, dict) else range(len(inside))
            key = self.pick([*keys])
            if isinstance(inside[key], (dict, list)) and inside[key] and self._rng.random() < 0.8:
                inside = inside[key]
                continue
            inside[key] = self.pick(STRANGE)
            break
        return [msgspec.msgpack.encode(message), *frames[1:]]


class Flood:
    """Sends such messages over several sockets. The first one reads no answers; the others come back as new ones."""

    def __init__(self, address, credentials, recorded, seed):
        self._address = address
        self._credentials = credentials
        self._mutations = Mutations([self._as_tenant(frames) for frames in recorded], seed)
        self._hellos = 0
        self._context = zmq.Context()
        self._sockets = [self._open(place) for place in range(SOCKETS)]
        self._left = [MESSAGES_OF_A_SOCKET] * SOCKETS
        self.answers = Counter()
        self.reasons = Counter()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._context.destroy(linger=0)

    def _as_tenant(self, frames):
        """Its own token in greetings: it gets in."""
        message = wire.decode_request(frames[0])
        if not isinstance(message, wire.Hello):
            return frames
        named = {"tenant": self._credentials.tenant, "token": self._credentials.token}
        return [wire.encode(msgspec.structs.replace(message, **named))]

    def _open(self, place):
        socket = self._context.socket(zmq.DEALER)
        socket.linger = 0
        socket.sndtimeo = 30_000 if place else STUCK_MILLISECONDS
        self._credentials.secure(socket)
        socket.connect(self._address)
        return socket

    def _enter(self, socket, place):
        """As a group of a job, if it is not one."""
        self._hellos += 1
        named = {"tenant": self._credentials.tenant, "token": self._credentials.token}
        # Alone in its job, or one of many groups, which wait for each other.
        groups = 1 if place % 2 else 20
        hello = wire.Hello(wire.VERSION, self._hellos, f"job-{place}", self._hellos % groups, groups, **named)
        socket.send(wire.encode(hello))
        for request, table in enumerate(("w", "e", "m")):
            socket.send(wire.encode(wire.Register(request, table, SPEC, False)))
            socket.send(wire.encode(wire.Initial(request, table, 0, LAYOUT.length)))

    def send(self, messages):
        """So many of them."""
        for number in range(0, messages, BURST):
            place = number // BURST % SOCKETS
            try:
                self._enter(self._sockets[place], place)
                for _ in range(min(BURST, messages - number)):
                    self._sockets[place].send_multipart(self._mutations.next())
            except zmq.Again:
                assert not place, "a socket that reads its answers is not stuck"
                self._renew(place)
            if place:
                self._read(self._sockets[place])
                self._left[place] -= BURST
            if self._left[place] <= 0:
                self._renew(place)

    def _renew(self, place):
        self._sockets[place].close()
        self._sockets[place], self._left[place] = self._open(place), MESSAGES_OF_A_SOCKET

    def rest(self):
        """Close no socket for a moment, while the server reads what was sent.

        If a connection breaks while a socket that has sent half of a message is being closed, libzmq 4.3.5 ends the
        process (`Resource temporarily unavailable (src/session_base.cpp:233)`).
        """
        time.sleep(0.1)

    def finish(self):
        """Return when the server has read everything that was sent by the sockets that read."""
        for socket in self._sockets[1:]:
            socket.send(wire.encode(wire.Pull(LAST, "w", 0, 256)))
        for socket in self._sockets[1:]:
            while getattr(self._take(socket), "request", None) != LAST:
                assert socket.poll(60_000), "no answer to the last message"

    def _read(self, socket):
        while socket.poll(0):
            self._take(socket)

    def _take(self, socket):
        """The next answer, counted."""
        answer = wire.decode_answer(socket.recv_multipart()[0])
        self.answers[type(answer).__name__] += 1
        if isinstance(answer, wire.Refused):
            self.reasons[re.sub(r"[0-9]+|'.*'", "", answer.message)[:60]] += 1
        return answer


# Who is beside it


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tenants") / "keys"
    make_tenant(folder, "alice")
    make_tenant(folder, "mallory", Quotas(memory_bytes=QUOTA_BYTES))
    return folder


@contextmanager
def serving(folder, *arguments):
    """A `hybridps serve` as a process: its address, and psutil's view of it."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("HYBRIDPS_")}
    command = [sys.executable, "-m", "hybridps", "serve", "--keys", str(folder), *arguments]
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            yield server.stdout.readline().split()[-1], psutil.Process(server.pid)
            assert server.poll() is None
        finally:
            server.terminate()
            assert server.wait(20) == 0


class Training:
    """Two groups of a tenant, one in shared memory, that train for so many `rounds`, or for 20 and until `stop`.

    Begins at once.
    """

    def __init__(self, address, folder, job, rounds=None):
        self._settings = Settings(chunk_bytes=1024, keys=str(folder), lost_seconds=60.0, deadline_seconds=90.0)
        self._address, self._job = address, job
        self._ends = threading.Event()
        self._together = threading.Barrier(2, self._decide)
        self._most = rounds
        self.rounds = 0
        self._pool = ThreadPoolExecutor(2)
        self._groups = [self._pool.submit(self._train, group) for group in range(2)]

    def stop(self):
        """The weights, after this round."""
        self._ends.set()
        return self.weights()

    def weights(self):
        """In the end."""
        both = [group.result(90 + (self._most or 0) / 100) for group in self._groups]
        self._pool.shutdown()
        np.testing.assert_array_equal(*both)
        return both[0]

    def _decide(self):
        """Both groups make the same number of rounds."""
        most = self._most or (20 if self._ends.is_set() else math.inf)
        self._goes_on = self.rounds < most
        self.rounds += self._goes_on

    def _train(self, group):
        rng = np.random.default_rng(group)
        memory = shared_memory if group else lambda nbytes: np.empty(nbytes, np.uint8)
        gradients = memory(LAYOUT.nbytes).view(np.float32)
        with Client([self._address], job=self._job, group=group, groups=2, settings=self._settings) as store:
            initial = np.ones(LAYOUT.length, np.float32)
            store.register("w", LAYOUT, initial, Momentum(rate=0.01, momentum=0.9))
            while self._together.wait(60) is not None and self._goes_on:
                gradients[:] = rng.standard_normal(LAYOUT.length)
                store.exchange("w", gradients, gradients, 0, LAYOUT.length).wait()
            return gradients.copy()


LONG = [pytest.mark.nightly, pytest.mark.timeout(3600)]


@pytest.mark.parametrize("messages", [10_000, pytest.param(1_000_000, marks=LONG)])
def test_a_flood_of_anything(folder, recorded, messages):
    credentials = Credentials.load(folder / "for-mallory")
    with serving(folder) as (address, process):
        Training(address, folder / "for-alice", "warm", 20).weights()
        before = largest = process.memory_info().rss
        beside = Training(address, folder / "for-alice", "beside")
        with Flood(address, credentials, recorded, seed=messages) as flood:
            for _ in range(0, messages, 1000):
                flood.send(1000)
                largest = max(largest, process.memory_info().rss)
            flood.finish()
        weights = beside.stop()
        largest = max(largest, process.memory_info().rss)
        alone = Training(address, folder / "for-alice", "alone", beside.rounds).weights()
    np.testing.assert_array_equal(weights, alone)
    check_answers(flood, messages / 2)
    print(f"{(largest - before) / 2**20:.0f} MB more, {beside.rounds} rounds beside, {flood.answers}")
    print(*(f"{count} {reason}" for reason, count in flood.reasons.most_common(20)), sep="\n")
    assert largest - before < QUOTA_BYTES + BESIDE_BYTES


@pytest.mark.parametrize(("messages", "kills"), [(10_000, 3), pytest.param(1_000_000, 100, marks=LONG)])
def test_a_flood_of_anything_while_the_server_is_killed_and_comes_back(folder, recorded, messages, kills):
    credentials = Credentials.load(folder / "for-mallory")
    with serving(folder, "--restarts", str(kills)) as (address, supervisor):
        beside = Training(address, folder / "for-alice", "beside")
        with Flood(address, credentials, recorded, seed=messages + kills) as flood:
            killed = set()
            for part in range(1, kills + 2):
                flood.send(messages // (kills + 1))
                if part <= kills:
                    flood.rest()
                    killed.add(kill_life_of(supervisor, killed))
                    flood.rest()
            flood.finish()
        weights = beside.stop()
        alone = Training(address, folder / "for-alice", "alone", beside.rounds).weights()
    np.testing.assert_array_equal(weights, alone)
    assert len(killed) == kills
    check_answers(flood, messages / 8)  # what a killed process had not read is lost


def kill_life_of(supervisor, known):
    """Kill the process that serves, another one than the `known`; returns its id."""
    end = time.monotonic() + 30
    while not (lives := [life for life in supervisor.children() if life.pid not in known]):
        assert time.monotonic() < end
        time.sleep(0.01)
    lives[0].kill()
    return lives[0].pid


def check_answers(flood, least):
    """The flood got far: members were refused for all that can be wrong, and answered; and nothing failed."""
    assert not [reason for reason in flood.reasons if "the server failed" in reason]
    assert {"Done", "Registered", "Welcome", "Refused"} <= {*flood.answers}
    assert len(flood.reasons) > 15
    assert flood.answers.total() > least


@pytest.mark.slow
def test_a_tenant_that_is_killed_changes_no_bits(folder):
    code = (
        "import sys, numpy as np\n"
        "from hybridps.config import Settings\n"
        "from hybridps.memory import Layout\n"
        "from hybridps.shared_memory import place_of, shared_memory\n"
        "from hybridps.ps.client import Client\n"
        "from hybridps.ps.rules import Sum\n"
        "layout = Layout.of('float32', {'w': (100_000,)})\n"
        "settings = Settings(chunk_bytes=1024, keys=sys.argv[2])\n"
        "store = Client([sys.argv[1]], job='beside', group=0, groups=1, settings=settings)\n"
        "store.register('w', layout, None, Sum())\n"
        "values = shared_memory(layout.nbytes).view(np.float32)\n"
        "print('there', flush=True)\n"
        "while True: store.exchange('w', values, values, 0, layout.length).wait()\n"
    )
    with serving(folder, "--lost-seconds", "1") as (address, _):
        beside = Training(address, folder / "for-alice", "beside")
        command = [sys.executable, "-c", code, address, str(folder / "for-mallory")]
        for _ in range(2):
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
                assert other.stdout.readline() == "there\n"
                other.kill()
        weights = beside.stop()
        alone = Training(address, folder / "for-alice", "alone", beside.rounds).weights()
    np.testing.assert_array_equal(weights, alone)


# What was found


class Peer:
    """A client that sends what it likes."""

    def __init__(self, server, credentials=None, name=None):
        self._context = zmq.Context()
        self.socket = self._context.socket(zmq.DEALER)
        self.socket.linger, self.socket.rcvhwm = 0, 1
        if credentials is not None:
            credentials.secure(self.socket)
        if name is not None:
            self.socket.routing_id = name
        self._named = {"tenant": credentials.tenant, "token": credentials.token} if credentials else {}
        self.socket.connect(server.address)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._context.destroy(linger=0)

    def ask(self, message, *payloads):
        self.say(message, *payloads)
        return self.hear()

    def say(self, message, *payloads):
        self.socket.send_multipart([wire.encode(message), *payloads])

    def hear(self):
        assert self.socket.poll(10_000), "no answer"
        return wire.decode_answer(self.socket.recv_multipart()[0])

    def join(self, spec=SPEC, job="job"):
        """Say hello, and register a table of zeros."""
        assert self.ask(wire.Hello(wire.VERSION, len(job), job, 0, 1, **self._named)) == wire.Welcome(wire.VERSION)
        assert self.ask(wire.Register(1, "w", spec, False)) == wire.Registered(1, True)
        done = set()
        self.say(wire.Initial(2, "w", 0, spec.layout.length))
        while len(done) < -(-spec.layout.nbytes // spec.chunk_bytes):
            done |= set(self.hear().chunks)


def test_whoever_reads_no_answers_is_lost(monkeypatch, caplog):
    monkeypatch.setattr("hybridps.ps.server.door.MOST_UNREAD", 100)
    with in_thread(Server()) as server, Peer(server) as deaf:
        deaf.join()
        refused = wire.encode(wire.Pull(3, 250 * "x", 0, 256))
        while not any("answers unread: lost" in record.getMessage() for record in caplog.records):
            deaf.socket.send(refused)
        with Peer(server) as other:
            other.join(job="another")


def test_pulls_that_nobody_reads_are_within_the_quota():
    """A small message with a large answer: such as fit are answered, the others refused."""
    large = TableSpec(Layout.of("float32", {"w": (1 << 20,)}), Sum(), BulkSynchronous(), 1 << 20, 0, 1)
    quota = 64 << 20
    server = Server(memory_bytes=quota)
    seen = server.observe()
    with in_thread(server), Peer(server) as peer:
        peer.join(large)
        for number in range(100):
            peer.say(wire.Pull(10 + number, "w", 0, 1 << 20))
        deadline = time.monotonic() + 20
        while seen.latest.get("tenant_messages", {}).get(("job",), 0) < 102:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert seen.latest["tenant_memory_bytes"]["job",] <= quota
        assert seen.latest["tenant_refused"]["job",] > 50
        answer = peer.hear()
        while not isinstance(answer, wire.Refused):
            answer = peer.hear()
        assert "the answer to a pull of table 'w'" in answer.message


def test_pages_of_a_profile_that_nobody_reads_are_within_the_quota():
    quota = PROFILE_BYTES + 20 * PAGE_BYTES
    with in_thread(Server(memory_bytes=quota)) as server, Peer(server) as peer:
        peer.join()
        assert peer.ask(wire.Profile(3, "run")) == wire.Done(3, ())
        for number in range(200):
            peer.say(wire.ProfilePage(10 + number, 0))
        deadline = time.monotonic() + 20
        while not server._loop.refused:  # before any is read
            assert time.monotonic() < deadline
            time.sleep(0.01)
        answers = [peer.hear() for _ in range(200)]
        refused = [answer for answer in answers if isinstance(answer, wire.Refused)]
        assert 0 < len(refused) < 200
        assert "a profile needs about" in refused[0].message


def test_a_socket_cannot_have_the_name_of_another_tenants_client(folder):
    alice, mallory = (Credentials.load(folder / f"for-{name}") for name in ("alice", "mallory"))
    with in_thread(Server(allowed=AllowList.load(folder))) as server:
        with Peer(server, alice, b"alice") as peer:
            peer.join()
        with Peer(server, mallory, b"alice") as thief:
            thief.say(wire.Pull(3, "w", 0, 256))
            answer = thief.hear()
            assert isinstance(answer, wire.Refused)
            assert "the name of another tenant's client" in answer.message


def test_answers_in_place_are_charged():
    jobs = SynchronousJobs()
    jobs.enter("job", 0, 1)
    jobs.register(origin(0), "w", SPEC)
    memory = shared_memory(LAYOUT.nbytes)
    place, regions, begin = place_of(memory), Regions(), wire.RegionOffset(0, 0)
    regions.change(wire.Attach(0, 0, os.getpid(), place.descriptor, place.secret, place.nbytes))
    message = wire.Exchange(1, "w", 0, LAYOUT.length, (begin,), (begin,) * 100)
    cost, _ = carry_out(jobs, origin(0, 1), message, (), regions)
    assert cost >= 100 * LAYOUT.nbytes


@pytest.mark.parametrize("groups", [1, 4096])
def test_many_small_tables_take_what_they_are_counted_as(groups):
    limit = 24 << 20
    jobs = SynchronousJobs(limit)
    jobs.enter("job", 0, groups)
    spec = msgspec.structs.replace(SPEC, layout=Layout.of("float32", {"w": (1,)}))
    before = psutil.Process().memory_info().rss
    with pytest.raises(ServerError, match="are free"):
        register_for_ever(jobs, spec)
    assert psutil.Process().memory_info().rss - before < limit + (4 << 20)


def register_for_ever(jobs, spec):
    """Tables with a centre."""
    for number in count():
        name = f"table-{number}"
        jobs.register(origin(0, number), name, spec)
        jobs.initialise(origin(0, number), name, 0, None)


def test_jobs_that_crashed_make_room_for_others():
    """A server without keys, where each job is a tenant: they are lost one after the other, and all are admitted."""
    jobs = SynchronousJobs(memory_bytes=1 << 20)
    accounts = Accounts(None, jobs.budget)
    spec = msgspec.structs.replace(SPEC, layout=Layout.of("float32", {"w": (40_000,)}))
    for number in range(20):
        name = f"job-{number}"
        account = accounts.admit(wire.Hello(wire.VERSION, number, name, 0, 1), "")[0]
        jobs.enter(name, 0, 1, account.budget)
        assert admitted(jobs.register(origin(0, job=name), "w", spec)) == [(0, True)]
        jobs.leave(name, 0, lost=True)


def test_jobs_that_crashed_make_room_for_messages_of_others():
    """Also if their tables have left less than a message takes."""
    warm_up(Sum(), "float32")
    large = TableSpec(Layout.of("float32", {"w": (1 << 18,)}), Sum(), BulkSynchronous(), 1 << 20, 0, 1)
    charged = SynchronousJobs()
    charged.enter("job", 0, 1)
    charged.register(origin(0), "w", large)
    server = Server(memory_bytes=charged.budget.used_bytes + 6000, lost_seconds=0.3)
    with in_thread(server):
        with Peer(server) as crashed:
            crashed.join(large, job="crashed")
        deadline = time.monotonic() + 20
        while True:
            with Peer(server) as other:
                number = time.monotonic_ns() % (1 << 60)
                hello = wire.Hello(wire.VERSION, number, f"job-{number}", 0, 1)
                assert isinstance(other.ask(hello), wire.Welcome)
                answer = other.ask(wire.Register(1, "w", large, False), bytes(100_000))
                if isinstance(answer, wire.Registered):
                    break
                assert time.monotonic() < deadline, answer


def test_a_register_of_a_few_bytes_costs_the_loop_nothing():
    """2^20 elements in chunks of 4 bytes: no work is done for each chunk, whatever the number of servers."""
    warm_up(Sum(), "float32")
    for servers in (1, 4096):
        jobs = Jobs(1 << 40)
        jobs.enter("job", 0, 2)
        spec = TableSpec(Layout.of("float32", {"w": (1 << 20,)}), Sum(), BulkSynchronous(), 4, 0, servers)
        assert len(wire.encode(wire.Register(1, "w", spec, False))) < 200
        with counted() as costs:
            outcomes = list(jobs.register(origin(0, 1), "w", spec))
        while outcomes:
            task = outcomes.pop(0)
            if isinstance(task, Task):
                result = task.run()
                with counted(costs):
                    outcomes[:0] = task.then(result)
        assert 100 < costs.lines < 10_000
        # Nothing but eight bytes, which are zero and therefore not written.
        assert 1000 < costs.peak_bytes < 8 * (1 << 20) + 500_000
        assert not jobs.table(origin(0, 1), "w")._chunks


@contextmanager
def counted(costs=None):
    """Count the lines of Python that run in the block, and the bytes that it has at once. Adds to `costs`."""
    costs = costs or SimpleNamespace(lines=0, peak_bytes=0)

    def note(frame, event, argument):
        costs.lines += event == "line"
        return note

    before = sys.gettrace()
    tracemalloc.start()
    sys.settrace(note)
    try:
        yield costs
    finally:
        sys.settrace(before)
        costs.peak_bytes += tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()


def test_a_message_of_too_many_frames_is_refused_and_forgotten():
    """A client beside it is answered meanwhile."""
    server = Server()
    seen = server.observe()
    with in_thread(server), Peer(server) as peer, Peer(server) as other:
        peer.join()
        other.join(job="other")
        before = psutil.Process().memory_info().rss
        peer.say(wire.Exchange(5, "w", 0, 256), *[bytes(1024)] * 20_000)
        assert isinstance(other.ask(wire.Heartbeat(5, 0)), wire.Alive)
        answer = peer.hear()
        assert (answer.request, answer.code) == (5, "protocol")
        assert "1024 payload frames at most" in answer.message
        peer.ask(wire.Pull(6, "w", 0, 256))
        assert seen.latest.get("tenant_waiting_messages", {}).get(("job",), 0) == 0
        assert psutil.Process().memory_info().rss - before < 64 << 20


def test_a_client_that_falls_silent_is_lost_beside_one_that_floods():
    """The socket is never empty then; the group that waits for the silent one goes on."""
    warm_up(Sum(), "float32")
    with in_thread(Server(lost_seconds=0.5)) as server, Peer(server) as flooding:
        flooding.join(job="flood")
        ends = threading.Event()

        def flood():
            while not ends.is_set():
                flooding.say(wire.Pull(7, "unknown", 0, 256))
                while flooding.socket.poll(0):
                    flooding.socket.recv_multipart()

        thread = threading.Thread(target=flood)
        thread.start()
        try:
            with Peer(server) as silent:
                assert isinstance(silent.ask(wire.Hello(wire.VERSION, 77, "job", 0, 1)), wire.Welcome)
            deadline = time.monotonic() + 30
            with Peer(server) as next_one:
                while isinstance(answer := next_one.ask(wire.Hello(wire.VERSION, 78, "job", 0, 1)), wire.Refused):
                    assert answer.code == "taken"
                    assert time.monotonic() < deadline
        finally:
            ends.set()
            thread.join()


def test_a_client_is_lost_though_the_socket_is_never_empty():
    members = Members(1.0, Jobs())
    silent = Member(b"silent", 1, "job", 0, 0.0, Account("job", Budget()))
    members.enter(silent, groups=1)
    assert members.silent(5.0, False, 100) == []
    assert members.silent(5.1, False, 100 + FAIR_READS) == []
    assert members.silent(5.2, False, 101 + FAIR_READS) == [silent]


def test_a_client_whose_message_waits_is_not_judged_before_it_is_heard():
    members = Members(1.0, Jobs())
    waits = Member(b"waits", 1, "job", 0, 0.0, Account("job", Budget()))
    members.enter(waits, groups=1)
    assert members.silent(5.0, False, 10_000) == []
    assert members.of(b"waits", 5.0) is waits
    for now in (5.5, 5.9, 6.1):
        assert members.silent(now, False, 20_000) == []
    assert members.silent(6.1, True, 20_002) == [waits]


def test_a_server_that_was_stopped_gives_its_clients_their_time_anew():
    """They may have been stopped with it."""
    members = Members(1.0, Jobs())
    client = Member(b"client", 1, "job", 0, 0.0, Account("job", Budget()))
    members.enter(client, groups=1)
    assert members.silent(0.4, True, 1) == []
    for now in (100.0, 100.3, 100.5):
        assert members.silent(now, True, 1) == []
    assert members.silent(100.7, True, 1) == []
    assert members.silent(100.8, True, 1) == [client]


def test_requests_are_settled_now_and_then(monkeypatch):
    """However often a client says so: all its chunks are looked at."""
    jobs, settled = Jobs(), []
    members = Members(8.0, jobs)
    members.enter(Member(b"", 1, "job", 0, 0.0, Account("job", Budget())), groups=1)
    monkeypatch.setattr(jobs, "settle", lambda job, group, request: settled.append(request))
    for now in (5.0, 5.5, 5.9, 6.0, 6.5):
        members.beat(wire.Heartbeat(1, int(10 * now)), now)
    assert settled == [50, 60]


def zmtp(server):
    """A raw connection that speaks ZeroMQ's protocol (ZMTP 3.0), ready to send messages."""
    host, _, port = server.address.removeprefix("tcp://").rpartition(":")
    raw = sockets.create_connection((host, int(port)), timeout=20)
    raw.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32))
    ready = b"\x05READY" + b"\x0bSocket-Type" + (6).to_bytes(4, "big") + b"DEALER" + b"\x08Identity" + bytes(4)
    raw.sendall(b"\x04" + bytes([len(ready)]) + ready)
    return raw


def test_a_message_that_never_ends_ends_its_connection():
    """ZeroMQ keeps the frames of a message until the last one comes, which here never does."""
    frame = b"\x03" + (1 << 20).to_bytes(8, "big") + bytes(1 << 20)
    with in_thread(Server()) as server, zmtp(server) as endless, Peer(server) as other:
        other.join()
        sent = count()

        def send():
            while next(sent) < 2048:
                endless.sendall(frame)

        with pytest.raises(ConnectionError):
            send()
        assert 32 <= next(sent) < 1024
        assert isinstance(other.ask(wire.Pull(2, "w", 0, SPEC.layout.length)), wire.Done)  # the others are served
