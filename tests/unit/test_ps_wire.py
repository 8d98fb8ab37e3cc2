from __future__ import annotations

from contextlib import suppress

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridps.errors import HybridPSError, LayoutError, ProtocolError, ServerError
from hybridps.memory import Layout, Slot
from hybridps.ps import wire
from hybridps.ps.clocks import BoundedStale, BulkSynchronous, FreeRunning
from hybridps.ps.model import GroupTakenError, TableSpec
from hybridps.ps.rules import SGD, Adam, Elastic, Momentum, Sum
from hybridps.ps.server.tables.making import check_spec

LAYOUT = Layout.of("float32", {"a": (3, 5), "b": (), "c": (0,)})
SPEC = TableSpec(LAYOUT, Elastic(0.5), FreeRunning(), 1024, 1, 3)
BEGIN = wire.RegionOffset(0, 64)
REQUESTS = [
    wire.Hello(wire.VERSION, 123, "job-1.x", 0, 2),
    wire.Register(1, "w", SPEC, True),
    wire.Register(1, "w", msgspec.structs.replace(SPEC, rule=Sum(), clock=BulkSynchronous()), False),
    wire.Register(1, "w", msgspec.structs.replace(SPEC, rule=Momentum(rate=0.1), clock=BoundedStale(3)), False),
    wire.Initial(1, "w", 0, 1),
    wire.Exchange(2, "w", 1, 2),
    wire.Exchange(2, "w", 1, 2, groups=0),
    wire.Exchange(2, "w", 0, 2, rules=((1, SGD(rate=0.5)), (2, SGD(rate=0.25, clip=1.0)))),
    wire.Put(2, "w", 0, 256, 1),
    wire.Drop(3, "w"),
    wire.Pull(1 << 62, "w", 3, 1 << 40),
    wire.Attach(4, 0, 77, 5, 16 * "0a", 4096),
    wire.Exchange(5, "w", 0, 9, (BEGIN,), (wire.RegionOffset(3, 0), BEGIN)),
    wire.Leave(),
    wire.Heartbeat(5, 0),
    wire.Profile(6, "run"),
    wire.ProfilePage(7, 3),
    wire.Silence(5, 1.5),
]
ANSWERS = [
    wire.Welcome(wire.VERSION),
    wire.Welcome(wire.VERSION, has_parent=True),
    wire.Registered(1, True),
    wire.Registered(1, False, dropped=True),
    wire.Done(4, ()),
    wire.Done(1, (2,)),
    wire.Done(1, (2, 3, 1 << 20)),
    wire.Done(1, (2, 3), ((0, 5), (1, 1 << 40))),
    wire.Alive(),
    wire.Silent((0, 4095)),
    wire.Refused("layout", "why", None),
    wire.Refused("taken", "why", 7),
]


def changed(message, **fields):
    """The frame of a message with fields replaced, unchecked."""
    return msgspec.msgpack.encode(msgspec.to_builtins(message) | fields)


@pytest.mark.parametrize("message", REQUESTS, ids=lambda m: type(m).__name__)
def test_requests_come_as_they_were(message):
    assert wire.decode_request(wire.encode(message)) == message
    assert wire.decode_request(memoryview(wire.encode(message))) == message


@pytest.mark.parametrize("message", ANSWERS, ids=lambda m: type(m).__name__)
def test_answers_come_as_they_were(message):
    assert wire.decode_answer(wire.encode(message)) == message


def test_each_side_reads_its_own_messages_only():
    with pytest.raises(ProtocolError, match="Welcome"):
        wire.decode_request(wire.encode(ANSWERS[0]))
    with pytest.raises(ProtocolError, match="Hello"):
        wire.decode_answer(wire.encode(REQUESTS[0]))


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\xc1",
        b"\x80",
        b"\x91" * 100_000,
        changed(REQUESTS[0], group=-1),
        changed(REQUESTS[0], group="0"),
        changed(REQUESTS[0], groups=0),
        changed(REQUESTS[0], groups=1 << 20),
        changed(REQUESTS[0], job="a/b"),
        changed(REQUESTS[0], job=""),
        changed(REQUESTS[0], more=1),
        changed(REQUESTS[0], kind="Exec"),
        changed(REQUESTS[4], table=""),
        changed(REQUESTS[4], table="w" * 257),
        changed(REQUESTS[4], start=-1),
        changed(REQUESTS[4], start=1 << 63),
        changed(REQUESTS[4], start=1.5),
        changed(REQUESTS[4], request=None),
        changed(REQUESTS[4], table=b"\xff\xfe"),
        changed(REQUESTS[9], pid=0),
        changed(REQUESTS[9], secret="../../../etc/passwd"),
        changed(REQUESTS[9], secret=""),
        changed(REQUESTS[9], nbytes=0),
        changed(REQUESTS[10], values=[{"region": -1, "offset": 0}]),
        changed(REQUESTS[10], answers=1025 * [{"region": 0, "offset": 0}]),
        changed(REQUESTS[10], values=[0, 0]),
        changed(REQUESTS[2], spec=None),
        changed(wire.Meet(1), number=1 << 62),  # the next meeting's number could not be sent
        b"\x84\xa4kind\xa4Pull\xa7request\x01\xa5table\xa2\xff\xfe\xa5chunk\x00",
    ],
)
def test_malformed_requests_are_refused(frame):
    with pytest.raises(ProtocolError, match="cannot be read"):
        wire.decode_request(frame)


@pytest.mark.parametrize("places", [[[-1, 0]], [[0, -1]], [[0, 1 << 63]], [[0]], [[0, 1, 2]], [["a", 0]], 5])
def test_malformed_answers_are_refused(places):
    with pytest.raises(ProtocolError, match="cannot be read"):
        wire.decode_answer(changed(wire.Done(1, (2,)), not_finite=places))


def test_answers_take_no_room_for_what_they_do_not_tell():
    assert b"not_finite" not in wire.encode(wire.Done(1, (2,)))


def test_another_version_is_refused_with_both():
    with pytest.raises(ProtocolError, match=f"version 99 .*version {wire.VERSION}"):
        wire.decode_request(changed(REQUESTS[0], version=99))


def test_a_control_frame_is_bounded():
    with pytest.raises(ProtocolError, match="at most"):
        wire.decode_request(bytes(wire.LARGEST_CONTROL_BYTES + 1))


def spec_with(**fields):
    return msgspec.structs.replace(SPEC, **fields)


@pytest.mark.parametrize(
    ("spec", "kind", "named"),
    [
        (spec_with(layout=Layout("object", LAYOUT.slots)), LayoutError, "'object'"),
        (spec_with(layout=Layout("f4,f4", LAYOUT.slots)), LayoutError, "'f4,f4'"),
        (spec_with(layout=Layout("int16", LAYOUT.slots)), LayoutError, "'int16'"),
        (spec_with(layout=Layout("int32", LAYOUT.slots)), LayoutError, "Elastic is not computed in int32"),
        (spec_with(layout=Layout("float32", (Slot("a", (-1,), 0),))), LayoutError, "'a'"),
        (spec_with(layout=Layout("float32", (Slot("a", (1 << 40, 1 << 40), 0),))), LayoutError, "elements"),
        (spec_with(layout=Layout("float32", (Slot("a", (1,) * 33, 0),))), LayoutError, "32 dimensions"),
        (spec_with(layout=Layout("float32", (Slot("a", (1,), 16),))), LayoutError, "aligned"),
        (spec_with(layout=Layout("float32", (Slot("a", (1,), 0), Slot("a", (1,), 16)))), LayoutError, "twice"),
        (spec_with(server=3), ProtocolError, "server 3 is none of 3"),
        (spec_with(servers=0, server=0), ProtocolError, "servers"),
        (spec_with(chunk_bytes=0), ProtocolError, "chunk_bytes"),
        (spec_with(chunk_bytes=1 << 29), ProtocolError, "chunk_bytes"),
        (spec_with(rule=Elastic(1.5)), ProtocolError, "alpha"),
        (spec_with(rule=Elastic(float("nan"))), ProtocolError, "alpha"),
        (spec_with(rule=Momentum(rate=float("nan"))), ProtocolError, "rate"),
        (spec_with(rule=Momentum(rate=0.1, momentum=1.5)), ProtocolError, "momentum"),
        (spec_with(rule=Adam(beta1=1.0)), ProtocolError, "beta1"),
        (spec_with(clock=BoundedStale(-1)), ProtocolError, "bound"),
    ],
)
def test_unusable_specs_are_refused(spec, kind, named):
    """Numbers when the message is read; the layout on a worker, as that may take long."""
    with pytest.raises(kind, match=named):
        check_spec(wire.decode_request(wire.encode(wire.Register(1, "w", spec, False))).spec)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(frame):
    for decode in (wire.decode_request, wire.decode_answer):
        try:
            message = decode(frame)
        except HybridPSError:
            continue
        assert decode(wire.encode(message)) == message


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(REQUESTS), st.data())
def test_mutated_requests_are_read_or_refused(message, data):
    frame = bytearray(wire.encode(message))
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    frame = bytes(frame[: data.draw(st.integers(0, len(frame)))]) if data.draw(st.booleans()) else bytes(frame)
    try:
        read = wire.decode_request(frame)
    except HybridPSError:
        return
    assert wire.decode_request(wire.encode(read)) == read
    if isinstance(read, wire.Register):
        with suppress(HybridPSError):
            check_spec(read.spec)
            assert read.spec.layout.length >= 0
            np.dtype(read.spec.layout.dtype)


@pytest.mark.parametrize("kind", [LayoutError, ProtocolError, GroupTakenError, ServerError])
def test_errors_travel(kind):
    refused = wire.decode_answer(wire.encode(wire.refusal(kind("a reason"), 3)))
    long = wire.refusal(kind(f"key {'k' * 4_000_000} is missing"), 3).message
    assert (len(long), long[:5], long[-10:]) == (1000, "key k", "is missing")
    assert refused.request == 3
    error = wire.error_of(refused, "tcp://host:1")
    assert type(error) is kind
    assert str(error) == "tcp://host:1: a reason"
