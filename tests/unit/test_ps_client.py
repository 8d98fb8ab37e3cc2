"""The parts of the client that need no server: messages, operations, deadlines, heartbeats."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress

import numpy as np
import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from hybridps.config import Settings
from hybridps.errors import LayoutError, ProtocolError, ServerError
from hybridps.memory import Layout
from hybridps.ps import wire
from hybridps.ps.client import Client
from hybridps.ps.client.heartbeat import Heartbeat
from hybridps.ps.client.operations import Operation, OperationSequence, Pace, Sent, Table
from hybridps.ps.client.sockets import Sockets
from hybridps.ps.clocks import BulkSynchronous
from hybridps.ps.model import TableSpec
from hybridps.ps.rules import Sum

pytestmark = pytest.mark.timeout(30)


def table_of(length, chunk_bytes=1024, servers=1, codec="exact", dtype="float32"):
    layout = Layout.of(dtype, {"w": (length,)})
    return Table("w", TableSpec(layout, Sum(), BulkSynchronous(), chunk_bytes, 0, servers, codec))


class Waits:
    """Waits for an operation by calling `end`."""

    def __init__(self, end=lambda operation: None):
        self._end = end

    def finish(self, operation, stays=True):
        self._end(operation)
        return operation.done


def operation(answers=None, finish=lambda operation: None, table=None):
    """A pull that waits for one server, or for these chunks."""
    made = Operation("pull of table 'w'", 1, Waits(finish), table)
    made.add(Sent(0, wire.Pull(1, "w", 0, 1), (), {0: None} if answers is None else answers))
    return made


@given(st.integers(1, 5), st.integers(0, 40_000), st.integers(0, 40_000), st.sampled_from([64, 256, 1024]))
def test_the_batches_of_all_servers_cover_a_span_once(servers, one, other, chunk_bytes):
    table = table_of(40_000, chunk_bytes, servers)
    start, stop = min(one, other), max(one, other)
    covered = np.zeros(40_000, np.int64)
    for server in range(servers):
        for spans in table.batches(server, start, stop):
            assert 0 < len(spans) <= wire.MOST_CHUNKS
            # What the server makes of the message.
            assert spans == [*table.chunk_map.spans(server, spans[0].start, spans[-1].stop)]
            for span in spans:
                covered[span.start : span.stop] += 1
    assert (covered[start:stop] == 1).all()
    assert covered.sum() == stop - start


def test_messages_are_bounded_by_bytes_and_by_chunks():
    table = table_of(4 << 20, chunk_bytes=1 << 20)
    assert {len(spans) for spans in table.batches(0, 0, 4 << 20)} == {4}
    assert [len(spans) for spans in table.batches(0, 0, 4 << 20, in_place=True)] == [16]
    table = table_of(100_000, chunk_bytes=64)
    for in_place in (False, True):
        sizes = [len(spans) for spans in table.batches(0, 0, 100_000, in_place)]
        assert max(sizes) == wire.MOST_CHUNKS
        assert sum(sizes) == 6250


@pytest.mark.parametrize("codec", ["exact", "float16"])
def test_payloads_are_the_encoded_values_of_each_chunk(codec):
    table = table_of(2000, codec=codec)
    values = np.random.default_rng(0).standard_normal(table.chunk_map.layout.length).astype(np.float32)
    (spans,) = table.batches(0, 100, 700)
    payloads = table.payloads(values, spans, table.codec)
    parts = [values[100:256], values[256:512], values[512:700]]
    for payload, part in zip(payloads, parts, strict=True):
        if codec == "exact":
            assert np.shares_memory(payload, part)
        else:
            np.testing.assert_array_equal(payload.view(np.float16), part.astype(np.float16))
    again = table.payloads(values, spans, table.codec)
    for payload, before in zip(again, payloads, strict=True):
        assert np.shares_memory(payload, before)


def test_a_codec_that_does_not_take_the_dtype_is_refused():
    with pytest.raises(LayoutError, match="float16"):
        table_of(10, codec="float16", dtype="float16")


def transfer_into(answer):
    """A request for elements 100 to 500, in chunks of 256, of which the first has 156."""
    return operation({0: answer[100:256], 1: answer[256:500]})


def test_answers_are_copied_once_into_their_elements():
    answer = np.zeros(512, np.float32)
    transfer = transfer_into(answer)
    first, second = np.full(156, 1, np.float32), np.full(244, 2, np.float32)
    transfer.take(0, wire.Done(1, (1,)), [second.data])
    assert not transfer.done
    transfer.take(0, wire.Done(1, (1, 0)), [np.zeros(244, np.float32).data, first.data])
    assert transfer.done
    np.testing.assert_array_equal(answer[100:500], np.concatenate([first, second]))
    assert not answer[:100].any()
    assert not answer[500:].any()


@pytest.mark.parametrize(
    ("chunks", "sizes", "why"),
    [
        ((2,), (156,), "not awaited"),
        ((0,), (), "0 payloads for 1 chunks"),
        ((0,), (156, 1), "2 payloads for 1 chunks"),
        ((0,), (155,), "620 bytes, not 624"),
    ],
)
def test_answers_that_do_not_fit_are_refused(chunks, sizes, why):
    transfer = transfer_into(np.zeros(512, np.float32))
    with pytest.raises(ProtocolError, match=why):
        transfer.take(0, wire.Done(1, chunks), [np.zeros(size, np.float32).data for size in sizes])


def exchange_of_rows():
    """Elements 100 to 300 of three rows at one server, and 300 to 500 at another one."""
    made = Operation("exchange of table 'w'", 1, Waits())
    places = tuple(wire.RegionOffset(0, 4096 * row) for row in range(3))
    for server in (0, 1):
        message = wire.Exchange(1, "w", 100 + 200 * server, 300 + 200 * server, places, places)
        made.add(Sent(server, message, (), {server: None}))
    return made


def test_rows_that_are_no_numbers_are_collected_from_all_servers():
    exchange = exchange_of_rows()
    exchange.take(0, wire.Done(1, (0,), ((1, 120),)), ())
    exchange.take(1, wire.Done(1, (1,), ((2, 499),)), ())
    exchange.take(0, wire.Done(1, (0,), ((2, 150),)), ())
    assert exchange.not_finite == {1: 120, 2: 150}


@pytest.mark.parametrize(("chunks", "not_finite"), [((0,), ((1, 120),) * 2), ((0, 1), ((1, 120),) * 3), ((0,) * 3, ())])
def test_an_answer_names_no_more_than_was_asked_for(chunks, not_finite):
    """A hostile server could name millions, which are looked at one by one."""
    with pytest.raises(ProtocolError, match="at most one row is named for each"):
        exchange_of_rows().take(0, wire.Done(1, chunks, not_finite), ())


@pytest.mark.parametrize("place", [(3, 150), (0, 99), (0, 500), (1 << 62, 1 << 62)])
def test_rows_and_elements_that_were_not_brought_are_refused(place):
    with pytest.raises(ProtocolError, match="names element"):
        exchange_of_rows().take(0, wire.Done(1, (0,), (place,)), ())
    with pytest.raises(ProtocolError, match="names element"):
        operation().take(0, wire.Done(1, (0,), ((0, 0),)), ())


LEFT_OPEN = """
import gc, sys, threading
from hybridps.config import Settings
from hybridps.ps.client import Client
from hybridps.ps.server import Server

def train():
    settings = Settings(lost_seconds=0.5, reconnect_seconds=0.0, deadline_seconds=60.0, awaits_refusing=False)
    with Server("tcp://127.0.0.1:*", threads=1) as server:
        serves = threading.Thread(target=server.run)
        serves.start()
        client = Client([server.address], job="job", group=0, groups=1, settings=settings)
        server.stop()
        serves.join()
    while client.session.heartbeat.is_alive():  # it ends as the server is gone
        threading.Event().wait(0.01)
    client.itself = client
    raise ValueError("left open")

try:
    train()
except ValueError as error:
    print(error)
gc.collect()
print("goes on")
"""


def test_a_client_that_is_left_open_holds_nobody_up():
    """Neither where it is garbage nor at the end of the process. Its sockets may be collected before their context."""
    done = subprocess.run([sys.executable, "-c", LEFT_OPEN], capture_output=True, text=True, timeout=25, check=False)
    assert (done.returncode, done.stdout) == (0, "left open\ngoes on\n"), done.stderr


def test_a_refused_chunk_does_not_end_the_others():
    """The server still computes them: the next exchange of the same elements would come too early."""
    answer = np.zeros(512, np.float32)
    transfer = transfer_into(answer)
    transfer.refuse(ServerError("the first reason"), 0)
    transfer.refuse(ServerError("the second reason"), 0)
    assert not transfer.done
    transfer.take(0, wire.Done(1, (1,)), [np.full(244, 2, np.float32).data])
    assert transfer.done
    assert str(transfer.error) == "the first reason"
    assert (answer[256:500] == 2).all()


def test_what_is_refused_as_a_whole_is_not_waited_for():
    transfer = transfer_into(np.zeros(512, np.float32))
    transfer.refuse(ServerError("no"))
    assert transfer.done
    assert not transfer.unanswered


def test_only_unanswered_messages_are_sent_again():
    transfer = Operation("exchange", 1, Waits())
    messages = [Sent(0, wire.Exchange(1, "w", chunk, chunk + 1), (), {chunk: None}) for chunk in range(2)]
    for message in messages:
        transfer.add(message)
    transfer.take(0, wire.Done(1, (0,)), ())
    assert transfer.unanswered == messages[1:]
    assert transfer.begin_again(0) == messages[1:]
    assert transfer.begin_again(1) == []


def test_all_answers_to_a_message_that_is_sent_again_are_awaited_anew():
    """The server writes those that came before once more: memory that it has must not be used before."""
    transfer = Operation("exchange", 1, Waits())
    transfer.add(Sent(0, wire.Exchange(1, "w", 0, 2), (), {0: None, 1: None}))
    transfer.take(0, wire.Done(1, (0,)), ())
    transfer.begin_again(0)
    transfer.take(0, wire.Done(1, (1,)), ())
    assert not transfer.done
    transfer.take(0, wire.Done(1, (0,)), ())
    assert transfer.done


def test_steps_begin_each_operation_when_the_one_before_is_done():
    operations = [operation(), operation(finish=lambda each: each.take(0, wire.Done(1, ()), ()))]
    begun = []

    def run():
        for each in operations:
            begun.append(each)
            yield each
        return "end"

    steps = OperationSequence(run())
    assert not steps.done
    assert begun == operations[:1]
    operations[0].take(0, wire.Done(1, ()), ())
    assert not steps.done
    assert begun == operations
    assert steps.wait() == "end"
    assert steps.done


def test_steps_end_with_the_error_of_an_operation():
    refused = operation()

    def run():
        yield refused
        raise AssertionError

    steps = OperationSequence(run())
    refused.refuse(ServerError("no"))
    assert steps.done
    with pytest.raises(ServerError, match="no"):
        steps.wait()


def test_the_deadline_grows_with_the_usual_duration():
    pace = Pace()
    assert pace.deadline_seconds(10.0) == 10.0
    for _ in range(100):
        pace.add(5.0)
    assert pace.deadline_seconds(10.0) == pytest.approx(40.0, rel=1e-3)


class Answering:
    """A server that answers heartbeats while `alive` is set; `heard` has what came."""

    def __init__(self, context, answer=None):
        self.alive = threading.Event()
        self.alive.set()
        self.heard = threading.Semaphore(0)
        self._answer = answer or wire.Alive()
        self._socket = context.socket(zmq.ROUTER)
        self._socket.bind("inproc://heart")
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def close(self):
        self._ending.set()
        self._thread.join()
        self._socket.close(linger=0)

    def _run(self):
        while not self._ending.is_set():
            if self._socket.poll(5) and self.alive.is_set():
                identity, frame = self._socket.recv_multipart()
                assert isinstance(wire.decode_request(frame), wire.Heartbeat)
                self._socket.send_multipart([identity, wire.encode(self._answer)])
                self.heard.release()


@contextmanager
def heartbeat_of(answer=None, lost_seconds=0.2, reconnect_seconds=0.0):
    context = zmq.Context()
    server = Answering(context, answer)
    sockets = Sockets(["inproc://heart"], None, context)
    waits = {"heartbeat_seconds": 0.02, "lost_seconds": lost_seconds, "reconnect_seconds": reconnect_seconds}
    heartbeat = Heartbeat(sockets, 7, Settings(**waits))
    heartbeat.begin(0)
    heartbeat.start()
    try:
        yield heartbeat, server
    finally:
        heartbeat.stop()
        sockets.close(0.0)
        server.close()
        context.term()


def failure_of(heartbeat):
    """What it fails with, in bounded time."""
    for _ in range(1000):
        if heartbeat.failure is not None:
            return str(heartbeat.failure)
        threading.Event().wait(0.01)
    raise AssertionError


def test_a_server_that_answers_no_heartbeat_is_lost():
    with heartbeat_of() as (heartbeat, server):
        for _ in range(5):
            assert server.heard.acquire(timeout=10)
            assert heartbeat.failure is None
        server.alive.clear()
        assert "no sign of life" in failure_of(heartbeat)


def test_a_refused_heartbeat_says_why():
    refused = wire.Refused("server", "not here")
    with heartbeat_of(refused) as (heartbeat, _):
        assert "not here" in failure_of(heartbeat)


def test_a_server_that_does_not_know_the_client_is_not_given_up_at_once():
    with heartbeat_of(wire.Refused("unknown", "not known here")) as (heartbeat, server):
        assert server.heard.acquire(timeout=10)
        assert server.heard.acquire(timeout=10)
        assert [*heartbeat.strangers] == [0]
        assert heartbeat.failure is None


def test_a_server_that_is_away_is_waited_for(capfd):
    with heartbeat_of(reconnect_seconds=60.0) as (heartbeat, server):
        assert server.heard.acquire(timeout=10)
        server.alive.clear()
        while not heartbeat.away:
            threading.Event().wait(0.01)
        server.alive.set()
        while heartbeat.away:
            threading.Event().wait(0.01)
        assert [*heartbeat.returned] == [0]
        assert heartbeat.failure is None
    first, second = capfd.readouterr().err.splitlines()
    assert first == "hybridps: inproc://heart cannot be reached for 0.2 s: waiting up to 60 s"
    assert second == "hybridps: inproc://heart is back after 0 s"


@contextmanager
def greeted_again():
    """A client that introduces itself, and whose connection breaks before it is answered; the second server socket.

    The client is a future. Yields it, the socket, and the name of the client there.
    """
    context, settings = zmq.Context(), Settings(connect_seconds=20.0, heartbeat_seconds=0.2)
    first = context.socket(zmq.ROUTER)
    address = f"tcp://127.0.0.1:{first.bind_to_random_port('tcp://127.0.0.1')}"
    with ThreadPoolExecutor(1) as pool:
        client = pool.submit(Client, [address], job="job", group=0, groups=1, settings=settings)
        assert first.poll(10_000)
        with closing(context.socket(zmq.ROUTER)) as second:
            second.linger = 0
            first.close(linger=0)
            for _ in range(200):
                try:
                    second.bind(address)
                    break
                except zmq.ZMQError:  # the first one lets its address go in a thread of its own
                    threading.Event().wait(0.02)
            assert second.poll(10_000)
            yield client, second, second.recv_multipart()[0]
    context.term()


def test_a_connection_that_breaks_before_its_welcome_is_restored():
    with greeted_again() as (client, server, name):
        server.send_multipart([name, wire.encode(wire.Welcome(wire.VERSION, life=1))])
        client.result(10).close(lost=True)


def test_a_refusal_of_an_earlier_introduction_does_not_end_a_client_that_is_welcome():
    """The last process of the group was there at first; the answers to both introductions come together."""
    taken = wire.encode(wire.Refused("taken", "group 0 is there already"))
    with greeted_again() as (client, server, name):
        for answer in (taken, taken, wire.encode(wire.Welcome(wire.VERSION))):
            server.send_multipart([name, answer])
        store = client.result(10)
        store.session.check()
        store.close(lost=True)


@pytest.mark.parametrize("was_connected", [True, False])
def test_broken_handshakes_are_a_refusal_only_of_a_server_that_was_never_connected(was_connected):
    """A server that is killed breaks the handshakes of clients that connect again while its process ends."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router, ExitStack() as stack:
        port = router.bind_to_random_port("tcp://127.0.0.1") if was_connected else 0
        if not was_connected:
            port = stack.enter_context(broken_handshakes(0))
        sockets = Sockets([f"tcp://127.0.0.1:{port}"], None, context)
        stack.callback(sockets.close, 0.0)
        if was_connected:
            until(sockets, lambda: sockets._connected)
            router.close(linger=0)
            stack.enter_context(broken_handshakes(port))
            until(sockets, lambda: sockets._failed[0] > 5)
        else:
            with pytest.raises(ServerError, match="refused a connection without keys"):
                until(sockets, lambda: False)


@contextmanager
def broken_handshakes(port):
    """Accept connections at a port (0: any free one, which this yields), and close each at once."""
    with listening(port) as listener:

        def accept():
            with suppress(OSError):
                while True:
                    listener.accept()[0].close()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(10)


def listening(port):
    """A socket that listens at a port, as soon as another one has closed there."""
    end = time.monotonic() + 10
    while True:
        try:
            return socket.create_server(("127.0.0.1", port))
        except OSError:
            assert time.monotonic() < end
            time.sleep(0.01)


def until(sockets, done):
    """Read the events of a connection until `done`."""
    end = time.monotonic() + 10
    while not done():
        assert time.monotonic() < end
        if sockets.monitors[0].poll(50):
            sockets.is_restored(0)
