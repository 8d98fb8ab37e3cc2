from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import numpy as np
import pytest
import zmq
from in_thread import in_thread

from hybridps.codecs import Quantised
from hybridps.config import Settings
from hybridps.errors import DeadlineError, LayoutError, ProtocolError, ServerError
from hybridps.memory import Layout
from hybridps.processes import ServerProcess
from hybridps.ps import wire
from hybridps.ps.client import Client
from hybridps.ps.clocks import BulkSynchronous
from hybridps.ps.keys import AllowList, Quotas, make_tenant
from hybridps.ps.model import Joining, TableSpec
from hybridps.ps.rules import Momentum, Sum, warm_up
from hybridps.ps.server import Server
from hybridps.shared_memory import place_of, shared_memory

pytestmark = pytest.mark.timeout(30)

LAYOUT = Layout.of("float32", {"w": (600,)})
LENGTH = LAYOUT.length
SPEC = TableSpec(LAYOUT, Sum(), BulkSynchronous(), 1024, 0, 1)
HUGE = TableSpec(Layout.of("float64", {"w": (1 << 35,)}), Sum(), BulkSynchronous(), 1024, 0, 1)
SETTINGS = Settings(
    chunk_bytes=1024, connect_seconds=10.0, deadline_seconds=10.0, lost_seconds=10.0, reconnect_seconds=0.0
)


@pytest.fixture
def server():
    with in_thread(Server()) as server:
        yield server


@pytest.fixture
def lossy():
    """A server that treats a group as lost soon: its rule is compiled before."""
    warm_up(Sum(), LAYOUT.dtype)
    with in_thread(Server.of(Settings(lost_seconds=0.3, reconnect_seconds=0.0), "tcp://127.0.0.1:*")) as server:
        yield server


def client(server, group=0, groups=1, job="job", **changes):
    return Client(
        [server.address], job=job, group=group, groups=groups, settings=msgspec.structs.replace(SETTINGS, **changes)
    )


class Raw:
    """A peer that sends what it likes."""

    def __init__(self, server, rcvhwm=1000):
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.rcvhwm = rcvhwm
        self.socket.linger = 0
        self.socket.connect(server.address)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()
        self.context.term()

    def say(self, *frames):
        self.socket.send_multipart([wire.encode(f) if isinstance(f, wire.Message) else f for f in frames])

    def hear(self):
        assert self.socket.poll(5000), "no answer"
        frames = self.socket.recv_multipart()
        return wire.decode_answer(frames[0])

    def ask(self, *frames):
        self.say(*frames)
        return self.hear()

    def enter(self, group=0, groups=1, job="job", session=None):
        session = 1000 + group if session is None else session
        assert self.ask(wire.Hello(wire.VERSION, session, job, group, groups)) == wire.Welcome(wire.VERSION)

    def register(self, table="w", spec=SPEC):
        warm_up(spec.rule, spec.layout.dtype, spec.codec)  # otherwise the answer comes when the rule is compiled
        answer = self.ask(wire.Register(1, table, spec, False))
        if answer.initialise:
            step = spec.chunk_bytes // spec.layout.itemsize
            for chunk, start in enumerate(range(0, spec.layout.length, step)):
                stop = min(start + step, spec.layout.length)
                assert self.ask(wire.Initial(2, table, start, stop)) == wire.Done(2, (chunk,))


def works(server, job="works"):
    """Whether an ordinary job gets through."""
    with client(server, job=job) as store:
        store.register("w", LAYOUT, None, Sum())
        values, answer = np.arange(LENGTH, dtype=np.float32), np.zeros(LENGTH, np.float32)
        store.exchange("w", values, answer, 0, LENGTH).wait()
        return bool((values == answer).all())


@pytest.mark.parametrize(
    ("frames", "named"),
    [
        ([b""], "cannot be read"),
        ([b"\xc1\xc1"], "cannot be read"),
        ([b"a", b"b", b"c"], "cannot be read"),
        ([b"\x80\x04\x95.", b"payload"], "cannot be read"),
        ([msgspec.msgpack.encode({"kind": "Leave", "more": 1})], "more"),
        ([msgspec.json.encode({"kind": "Leave"})], "cannot be read"),
        ([wire.encode(wire.Alive())], "Alive"),
        ([wire.encode(wire.Leave())], "not known here"),
        ([wire.encode(wire.Heartbeat(1, 0))], "not known here"),
        ([wire.encode(wire.Pull(1, "w", 0, 1))], "not known here"),
        ([wire.encode(wire.Hello(99, 1, "job", 0, 1))], "version 99"),
        ([wire.encode(wire.Hello(wire.VERSION, 1, "job", 3, 2))], "group 3 is none of 2"),
    ],
)
def test_strange_messages_are_refused_and_the_server_goes_on(server, frames, named):
    with Raw(server) as raw:
        answer = raw.ask(*frames)
        assert isinstance(answer, wire.Refused)
        assert named in answer.message
        assert server._loop.refused == 1
        assert works(server)


@pytest.mark.parametrize(
    "nbytes",
    [0, 63, 65, 1024],
)
def test_packed_values_of_another_size_are_refused(server, nbytes):
    with Raw(server) as raw:
        raw.enter()
        raw.register(spec=msgspec.structs.replace(SPEC, codec=Quantised(2, 0.5)))
        answer = raw.ask(wire.Exchange(7, "w", 0, 256), bytes(nbytes))
        assert isinstance(answer, wire.Refused)
        assert f"of {nbytes} bytes, not 1 of 64" in answer.message
        assert raw.ask(wire.Exchange(8, "w", 0, 256), b"\xff" * 64) == wire.Done(8, (0,))
        assert works(server)


def test_compression_of_what_cannot_be_compressed_is_refused(server):
    halves = msgspec.structs.replace(SPEC, layout=Layout.of("float16", {"w": (100,)}), codec=Quantised(2, 0.5))
    with Raw(server) as raw:
        raw.enter()
        answer = raw.ask(wire.Register(1, "w", halves, False))
        assert isinstance(answer, wire.Refused)
        assert "does not take float16" in answer.message
        assert works(server)


@pytest.mark.parametrize(
    ("frames", "named"),
    [
        ([wire.Exchange(7, "w", 0, 256)], "without their values"),
        ([wire.Exchange(7, "w", 0, 256), bytes(1023)], "of 1023 bytes, not 1 of 1024"),
        ([wire.Exchange(7, "w", 0, 256), b""], "of 0 bytes, not 1 of 1024"),
        ([wire.Exchange(7, "w", 512, LENGTH), bytes(1024)], "came"),
        ([wire.Exchange(7, "w", 768, 1024), bytes(1024)], "elements 768:1024 are not within the 608"),
        ([wire.Exchange(7, "unknown", 0, 256), bytes(1024)], "no table 'unknown'"),
        ([wire.Pull(7, "w", 1 << 40, (1 << 40) + 1)], "elements 1099511627776:1099511627777 are not within"),
        ([wire.Pull(7, "w", 0, 100)], "elements 0:100 of table 'w' are no whole chunk"),
        ([wire.Initial(7, "w", 0, 256), bytes(1024)], "not the one to initialise"),
        ([wire.Register(7, "v", msgspec.structs.replace(SPEC, layout=Layout("object", ())), False)], "object"),
        ([wire.Register(7, "v", msgspec.structs.replace(HUGE, chunk_bytes=1 << 28), False)], "are free"),
        ([wire.Register(7, "v", msgspec.structs.replace(HUGE, servers=4096), False)], "larger chunk_bytes"),
    ],
)
def test_bad_requests_of_a_member_are_refused(server, frames, named):
    with Raw(server) as raw:
        raw.enter()
        raw.register()
        answer = raw.ask(*frames)
        assert isinstance(answer, wire.Refused)
        assert named in answer.message
        ok = raw.ask(wire.Exchange(8, "w", 0, 256), bytes(1024))
        assert ok == wire.Done(8, (0,))
        assert works(server)


def test_an_oversized_message_is_not_read(monkeypatch):
    monkeypatch.setattr(wire, "LARGEST_CHUNK_BYTES", 4096)
    with in_thread(Server()) as server, Raw(server) as raw:
        monkeypatch.undo()
        raw.enter()
        raw.say(wire.Exchange(1, "w", 0, 256), bytes(8192))
        # The connection is dropped, and what was sent on it; the peer comes back as one that is not known.
        while not raw.socket.poll(50):
            raw.say(wire.Pull(2, "w", 0, 256))
        answer = raw.hear()
        assert isinstance(answer, wire.Refused)
        assert "not known here" in answer.message
        assert works(server)


def test_contributing_twice_in_a_round_is_refused_and_names_the_group(server):
    with Raw(server) as raw:
        raw.enter(0, 2)
        raw.register()
        raw.say(wire.Exchange(3, "w", 0, 256), bytes(1024))
        answer = raw.ask(wire.Exchange(4, "w", 0, 256), bytes(1024))
        assert answer.request == 4
        assert "group 0 contributes to chunk 0 twice" in answer.message


def test_a_client_says_hello_once(server):
    with Raw(server) as raw:
        raw.enter()
        assert "hello already" in raw.ask(wire.Hello(wire.VERSION, 5, "job", 0, 1)).message


def test_nobody_listening():
    began = time.monotonic()
    with pytest.raises(
        ServerError, match=r"no answer from tcp://127.0.0.1:1 within 0.2 s: is `hybridps serve` running"
    ):
        Client(
            ["tcp://127.0.0.1:1"],
            job="job",
            group=0,
            groups=1,
            settings=msgspec.structs.replace(SETTINGS, connect_seconds=0.2),
        )
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("address", ["127.0.0.1:5555", "tcp://127.0.0.1", "smoke://host:1"])
def test_an_unusable_address_is_named(address):
    with pytest.raises(ServerError, match="is not an address of a server"):
        Client([address], job="job", group=0, groups=1, settings=SETTINGS)


def test_no_address():
    with pytest.raises(ServerError, match="no server is given"):
        Client([], job="job", group=0, groups=1, settings=SETTINGS)


def test_port_in_use():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ServerError, match=f"cannot serve at {address}.*in use"):
            Server(address)


@pytest.mark.parametrize("address", ["tcp://*:*", "tcp://0.0.0.0:*", "tcp://[::]:*", "tcp://192.0.2.1:5", "nonsense"])
def test_beyond_this_host_needs_insecure(address):
    with pytest.raises(ServerError, match="insecure"):
        Server(address)


def test_insecure_listens_everywhere():
    with in_thread(Server(address="tcp://0.0.0.0:*", insecure=True)) as server:
        assert server.address.startswith("tcp://0.0.0.0:")


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:*", "tcp://127.0.0.2:*", "ipc://*"])
def test_this_host_needs_nothing(address):
    with in_thread(Server(address=address)) as server:
        assert works(server)


def test_stop_before_run_and_after_close():
    server = Server()
    server.stop()
    server.run()
    server.stop()
    server.close()


def test_ends_when_all_groups_have_gone():
    server = Server(stop_after_groups=2, lost_seconds=0.3)
    thread = threading.Thread(target=server.run)
    thread.start()
    with Raw(server) as raw:
        raw.enter(1, 2)
        with client(server, 0, 2):
            pass
        thread.join(10)
    assert not thread.is_alive()


def test_a_lost_group_is_left_out_and_told(lossy, caplog):
    caplog.set_level(logging.WARNING, "hybridps.ps")
    with Raw(lossy) as raw:
        raw.enter(0, 2)
        with client(lossy, 1, 2, lost_seconds=0.4) as store:
            raw.register()
            store.register("w", LAYOUT, None, Sum())
            values = np.ones(LENGTH, np.float32)
            store.exchange("w", values, values, 0, LENGTH).wait()
            assert (values == 1).all()
            answer = raw.ask(wire.Exchange(9, "w", 0, 256), bytes(1024))
            assert "treated as lost" in answer.message
            assert "treated as lost" in raw.ask(wire.Heartbeat(1000, 0)).message
            raw.enter(0, 2, session=77)
            raw.register()
    assert [r.getMessage() for r in caplog.records if "group 0 of job 'job'" in r.getMessage()] == [
        "group 0 of job 'job' gave no sign of life for 0.3 s: lost"
    ]


def test_a_heartbeat_keeps_a_group(lossy):
    """A client that does nothing but beat stays, for several times the seconds after which it were lost."""
    with client(lossy, lost_seconds=0.3) as store:
        store.register("w", LAYOUT, None, Sum())
        for session in range(3):
            with Raw(lossy) as silent:
                silent.enter(0, 1, job="short", session=session)
            with Raw(lossy) as next_one:
                hello = wire.Hello(wire.VERSION, 500, "short", 0, 1)
                while isinstance(answer := next_one.ask(hello), wire.Refused):
                    assert answer.code == "taken"
                assert next_one.ask(wire.Leave()) == wire.Alive()
        store.pull("w", np.zeros(LENGTH, np.float32))


def test_a_dropped_initialiser_is_replaced(lossy):
    with Raw(lossy) as raw:
        raw.enter(0, 2)
        raw.say(wire.Register(1, "w", SPEC, False))
        assert raw.hear() == wire.Registered(1, True)
        with client(lossy, 1, 2, lost_seconds=0.4) as store:
            initial = np.full(LENGTH, 4, np.float32)
            assert store.register("w", LAYOUT, initial, Sum()) is Joining.NEW
            out = np.zeros(LENGTH, np.float32)
            store.pull("w", out)
            assert (out == 4).all()


def test_a_first_group_that_never_comes_is_replaced():
    quick = {"lost_seconds": 0.4, "heartbeat_seconds": 0.05}
    with in_thread(Server(lost_seconds=0.4)) as server, client(server, 1, 2, **quick) as store:
        initial = np.full(LENGTH, 4, np.float32)
        assert store.register("w", LAYOUT, initial, Sum()) is Joining.NEW
        with client(server, 0, 2, **quick) as late:
            assert late.register("w", LAYOUT, None, Sum()) is Joining.LATE


def test_a_group_comes_back_while_its_last_process_is_not_yet_lost(lossy):
    with Raw(lossy) as raw:
        raw.enter(0, 1)
        with client(lossy, 0, 1, lost_seconds=0.4) as store:
            assert store.register("w", LAYOUT, None, Sum()) is Joining.NEW


def test_a_group_that_stays_is_not_replaced(lossy):
    with (
        client(lossy, 0, 1, lost_seconds=0.4),
        pytest.raises(ServerError, match="group 0 of job 'job' is there already"),
    ):
        client(lossy, 0, 1, lost_seconds=0.4, connect_seconds=0.4)


@pytest.mark.parametrize("waits", [{"reconnect_seconds": 0.0}, {"reconnect_seconds": 60.0, "awaits_refusing": False}])
def test_a_server_that_ends_is_noticed(waits):
    with in_thread(Server()) as server:
        store = client(server, 0, 2, lost_seconds=0.4, **waits)
        store.register("w", LAYOUT, None, Sum())
        values = np.ones(LENGTH, np.float32)
        pending = store.exchange("w", values, values, 0, LENGTH)
    with pytest.raises(ServerError, match=f"{server.address} gave no sign of life for 0.4 s"):
        pending.wait()
    began = time.monotonic()
    store.close()
    store.close()
    assert time.monotonic() - began < 5


def test_a_restarted_server_is_noticed():
    with in_thread(Server()) as server:
        store = client(server, 0, 2, lost_seconds=5.0, heartbeat_seconds=0.05)
        store.register("w", LAYOUT, None, Sum())
        values = np.ones(LENGTH, np.float32)
        pending = store.exchange("w", values, values, 0, LENGTH)
    with in_thread(Server(address=server.address)):
        with pytest.raises(ServerError, match="not known here: was the server"):
            pending.wait()
        store.close()


def test_a_group_that_does_not_come_is_a_deadline(server):
    with client(server, 0, 2) as other, client(server, 1, 2, deadline_seconds=2) as store:
        other.register("w", LAYOUT, None, Sum())
        store.register("w", LAYOUT, None, Sum())
        values = np.ones(LENGTH, np.float32)
        with pytest.raises(DeadlineError, match=r"exchange of table 'w' is not done after 2 s"):
            store.exchange("w", values, values, 0, LENGTH).wait()


@pytest.mark.slow
def test_a_tenant_that_rests_is_slow_and_not_lost(tmp_path, caplog):
    """Its messages wait longer than a server takes that is there, and longer than it takes to be lost."""
    warm_up(Sum(), LAYOUT.dtype)
    layout = Layout.of("float32", {"w": (4 * LENGTH,)})
    tenant = make_tenant(tmp_path / "keys", "slow", Quotas(bytes_per_second=layout.nbytes))
    serving = Server(allowed=AllowList.load(tmp_path / "keys"), lost_seconds=0.4)
    with in_thread(serving) as server, caplog.at_level(logging.WARNING):
        with client(server, keys=str(tenant), connect_seconds=0.2, heartbeat_seconds=0.1) as store:
            store.register("v", layout, None, Sum())  # the initial values cost a second
            store.register("w", LAYOUT, None, Sum())
            values = shared_memory(layout.nbytes).view(np.float32)
            store.exchange("v", values, values, 0, layout.length).wait()  # and so does this: the goodbye comes after it
        time.sleep(1.5)
        with client(server, keys=str(tenant)) as store:
            assert store.register("w", LAYOUT, None, Sum()) is Joining.NEW, "the tables went with the last group"
    assert "lost" not in caplog.text


def test_waiting_for_the_initialiser_has_the_long_deadline(server):
    with Raw(server) as raw:
        raw.enter(0, 2)
        raw.say(wire.Register(1, "w", SPEC, False))
        assert raw.hear() == wire.Registered(1, True)
        with (
            client(server, 1, 2, connect_seconds=0.1, deadline_seconds=0.4) as store,
            pytest.raises(DeadlineError, match="registration of table 'w'"),
        ):
            store.register("w", LAYOUT, None, Sum())


def test_groups_and_servers_must_agree(server):
    with client(server, 0, 2), pytest.raises(ServerError, match="groups=2.*3"):
        client(server, 1, 3)


@pytest.mark.parametrize(
    ("changes", "kind", "named"),
    [
        ({"chunk_bytes": 2048}, ServerError, "chunk_bytes=1024.*2048"),
        ({"chunk_bytes": 1022}, LayoutError, "chunk_bytes=1022"),
    ],
)
def test_another_chunk_size_is_refused(server, changes, kind, named):
    with client(server, 0, 2) as first, client(server, 1, 2, **changes) as second:
        first.register("w", LAYOUT, None, Sum())
        with pytest.raises(kind, match=named):
            second.register("w", LAYOUT, None, Sum())


def test_answers_that_were_not_asked_for_are_refused():
    """A server that sends nonsense ends the wait with the reason."""
    context = zmq.Context()
    router = context.socket(zmq.ROUTER)
    port = router.bind_to_random_port("tcp://127.0.0.1")

    def pretend():
        identity, _ = router.recv_multipart()
        router.send_multipart([identity, b"\xc1"])

    with ThreadPoolExecutor(1) as pool:
        pool.submit(pretend)
        with pytest.raises(ProtocolError, match="cannot be read"):
            Client([f"tcp://127.0.0.1:{port}"], job="job", group=0, groups=1, settings=SETTINGS)
    router.close(linger=0)
    context.term()


def test_bytes_are_counted(server):
    with client(server) as store:
        store.register("w", LAYOUT, None, Sum())
        assert store.bytes_to_servers == 0
        values = np.zeros(LENGTH, np.float32)
        store.exchange("w", values, values, 0, LENGTH).wait()
        store.pull("w", values)
        assert store.bytes_to_servers == LAYOUT.nbytes


def test_nothing_is_left_behind(server):
    def held():
        return len(os.listdir("/proc/self/fd")), threading.active_count()

    assert works(server, "warm")
    before = held()
    for turn in range(5):
        assert works(server, f"job-{turn}")
    descriptors, threads = held()
    assert threads == before[1]
    assert descriptors <= before[0] + 2


def test_a_slow_group_gets_the_answers_of_its_rounds(server):
    """Answers that a group has not read stay as they were, though the others begin new rounds."""
    layout, rounds = Layout.of("float32", {"w": (1 << 20,)}), 8
    spec = TableSpec(layout, Sum(), BulkSynchronous(), layout.nbytes, 0, 1)
    with client(server, 0, 2, chunk_bytes=layout.nbytes) as fast, Raw(server, rcvhwm=1) as slow:
        fast.register("w", layout, None, Sum())
        slow.enter(1, 2)
        slow.register(spec=spec)
        for number in range(rounds):
            values = np.full(layout.length, number, np.float32)
            slow.say(wire.Exchange(number, "w", 0, layout.length), values.tobytes())
            fast.exchange("w", values, values, 0, layout.length).wait()
            assert (values == 2 * number).all()
        for number in range(rounds):
            control, payload = slow.socket.recv_multipart()
            assert wire.decode_answer(control) == wire.Done(number, (0,))
            assert (np.frombuffer(payload, np.float32) == 2 * number).all()


# In shared memory


def attached(raw, nbytes=1 << 20):
    """Memory of this process that the server works on, as region 0."""
    memory = shared_memory(nbytes)
    place = place_of(memory)
    offer = wire.Attach(9, 0, os.getpid(), place.descriptor, place.secret, place.nbytes)
    assert raw.ask(offer) == wire.Done(9, ())
    return memory


def test_an_exchange_in_place_sends_nothing():
    with in_thread(Server(threads=2)) as server, Raw(server) as raw:
        raw.enter()
        raw.register()
        numbers = attached(raw).view(np.float32)
        numbers[:LENGTH] = np.arange(LENGTH)
        raw.say(wire.Exchange(3, "w", 0, LENGTH, (wire.RegionOffset(0, 0),), (wire.RegionOffset(0, 8192),)))
        chunks = set()
        while len(chunks) < 3:
            assert raw.socket.poll(5000)
            (control,) = raw.socket.recv_multipart()
            chunks |= set(wire.decode_answer(control).chunks)
        assert (numbers[2048 : 2048 + LENGTH] == np.arange(LENGTH)).all()
        assert not numbers[2048 + LENGTH :].any()


@pytest.mark.parametrize(
    ("values", "answer"),
    [
        (wire.RegionOffset(1, 0), wire.RegionOffset(0, 0)),
        (wire.RegionOffset(0, 0), wire.RegionOffset(0, (1 << 20) - 64)),
        (wire.RegionOffset(0, 1 << 62), wire.RegionOffset(0, 0)),
        (wire.RegionOffset(0, 2), wire.RegionOffset(0, 0)),
    ],
)
def test_places_outside_of_the_memory_are_refused(server, values, answer):
    with Raw(server) as raw:
        raw.enter()
        raw.register()
        attached(raw)
        refused = raw.ask(wire.Exchange(3, "w", 0, LENGTH, (values,), (answer,)))
        assert isinstance(refused, wire.Refused)
        assert "has no room for the" in refused.message
        assert works(server)


@pytest.mark.parametrize("places", [{"values": (wire.RegionOffset(0, 0),)}, {"answers": (wire.RegionOffset(0, 0),)}])
def test_an_exchange_in_place_has_values_and_answers(server, places):
    with Raw(server) as raw:
        raw.enter()
        raw.register()
        attached(raw)
        refused = raw.ask(wire.Exchange(3, "w", 0, LENGTH, **places))
        assert isinstance(refused, wire.Refused)
        assert "values and answers, or neither" in refused.message
        assert works(server)


def test_strange_memory_is_refused(server):
    with Raw(server) as raw:
        raw.enter()
        attached(raw)
        for region, pid, descriptor, named in ((0, os.getpid(), 0, "taken"), (1, 1 << 30, 0, "cannot be opened")):
            answer = raw.ask(wire.Attach(4, region, pid, descriptor, 16 * "ab", 4096))
            assert isinstance(answer, wire.Refused)
            assert named in answer.message
        assert works(server)


def test_exchanges_in_place_with_a_server_in_another_process():
    two = msgspec.structs.replace(SETTINGS, server_threads=2)
    with ServerProcess(two) as process, client(process, 0, 2) as first, client(process, 1, 2) as second:
        arrays = [shared_memory(LAYOUT.nbytes).view(np.float32) for _ in range(2)]
        for store in (first, second):
            store.register("w", LAYOUT, None, Momentum(rate=0.5, momentum=0.0))
        for array in arrays:
            array[:] = np.arange(LENGTH)
        pending = [s.exchange("w", a, a, 0, LENGTH) for s, a in zip((first, second), arrays, strict=True)]
        for operation, array in zip(pending, arrays, strict=True):
            operation.wait()
            np.testing.assert_array_equal(array, -np.arange(LENGTH))
        assert "memfd:hybridps" in Path(f"/proc/{process.pid}/maps").read_text()


def test_a_server_that_cannot_reach_the_memory_gets_the_values_sent(server, monkeypatch):
    monkeypatch.setattr("hybridps.ps.client.regions.place_of", lambda array: place_of(array)._replace(secret=16 * "ab"))
    with client(server) as store:
        store.register("w", LAYOUT, None, Sum())
        array = shared_memory(LAYOUT.nbytes).view(np.float32)
        array[:] = np.arange(LENGTH)
        for _ in range(2):
            store.exchange("w", array, array, 0, LENGTH).wait()
        np.testing.assert_array_equal(array, np.arange(LENGTH))
        assert server._loop.refused == 1


def test_threads_are_pinned():
    allowed = sorted(os.sched_getaffinity(0))
    with in_thread(Server(threads=2, cores=[allowed[-1]])) as server:
        assert works(server)
        workers = [thread for thread in threading.enumerate() if thread.name == "hybridps-worker"]
        while [os.sched_getaffinity(worker.native_id) for worker in workers] != [{allowed[-1]}] * 2:
            time.sleep(0.01)
    assert os.sched_getaffinity(0) == set(allowed)
    with pytest.raises(ServerError, match="pinned to the cores .*may use"):
        Server(cores=[10_000])


def test_a_chunk_that_cannot_be_worked_on_is_told(server, monkeypatch):
    def broken(*arguments, **options):
        raise MemoryError("none left")

    with client(server, chunk_bytes=LAYOUT.nbytes) as store:
        store.register("w", LAYOUT, None, Sum())
        monkeypatch.setattr("hybridps.ps.server.chunks.memory.apply_", broken)
        values = np.ones(LENGTH, np.float32)
        with pytest.raises(ServerError, match="the server failed: MemoryError: none left"):
            store.exchange("w", values, values, 0, LENGTH).wait()
        monkeypatch.undo()
        store.exchange("w", values, values, 0, LENGTH).wait()


# A server started as a process

SERVE = """
import sys, signal
from hybridps.ps.server import Server
server = Server()
signal.signal(signal.SIGTERM, lambda *_: server.stop())
print(f"hybridps: serving at {server.address}", flush=True)
print("x" * 200_000, flush=True)
server.run()
"""


def command(code):
    return [sys.executable, "-c", code]


def test_process_serves_and_stops():
    with ServerProcess(SETTINGS, command=command(SERVE)) as process:
        assert works(process)
    assert process.stop() == 0


@pytest.mark.parametrize(
    ("code", "seconds", "named"),
    [
        ("import sys; sys.exit(3)", 20, "said '' instead of its address, and ended with status 3"),
        ("print('hello', flush=True)", 20, "said 'hello'"),
        ("import signal; signal.pause()", 0.5, "did not say its address within 0.5 s"),
    ],
)
def test_process_that_does_not_serve(code, seconds, named):
    with pytest.raises(ServerError, match=named):
        ServerProcess(SETTINGS, command=command(code), start_seconds=seconds)


def test_process_that_ignores_the_request_is_killed(monkeypatch):
    monkeypatch.setattr("hybridps.processes.STOP_SECONDS", 0.2)
    stubborn = "import signal; signal.signal(15, signal.SIG_IGN); print('hybridps: serving at x', flush=True)\n"
    process = ServerProcess(SETTINGS, command=command(stubborn + "while True: signal.pause()"))
    assert process.stop() == -signal.SIGKILL


def test_process_ends_with_its_parent():
    parent = f"""
import os, signal
from hybridps.config import Settings
from hybridps.processes import ServerProcess
inner = ServerProcess(Settings(), command={command(SERVE)!r})
print("hybridps: serving at", inner.address, flush=True)
signal.pause()
"""
    outer = ServerProcess(SETTINGS, command=command(parent))
    assert works(outer)
    os.kill(outer.pid, signal.SIGKILL)
    outer.stop()
    settings = msgspec.structs.replace(SETTINGS, connect_seconds=0.5)

    def greet_for_a_while():
        for job in range(20):  # the system ends the child a moment after its parent
            Client([outer.address], job=str(job), group=0, groups=1, settings=settings).close()
            time.sleep(0.1)

    with pytest.raises(ServerError, match="no answer"):
        greet_for_a_while()


def test_process_is_no_rank_and_has_the_settings(monkeypatch):
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    monkeypatch.setenv("HYBRIDPS_RUN_FOLDER", "/elsewhere")
    told = "import os; n = sorted(k for k in os.environ if k[:4] in ('OMPI', 'HYBR'))\n"
    with ServerProcess(
        Settings(lost_seconds=3.0), command=command(told + "print('hybridps: serving at', n, flush=True)")
    ) as process:
        assert process.address == "['HYBRIDPS_LOST_SECONDS']"
