"""Mail over ZeroMQ: order, bounds, keys, and letters from strangers."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridps.config import Settings
from hybridps.errors import ProtocolError, ServerError
from hybridps.gossip import Partners
from hybridps.gossip.letter import Letter, decode, encode
from hybridps.gossip.mail import Received
from hybridps.gossip.socket_mail import MOST_UNSENT, SocketMail
from hybridps.memory import Layout
from hybridps.ps.keys import Credentials, make_tenant

pytestmark = pytest.mark.timeout(60)
SECONDS = 10.0
LAYOUT = Layout.of("float32", {"a": (64,)})


def addresses_in(folder: Path, count: int) -> list[str]:
    return [f"ipc://{folder}/{rank}" for rank in range(count)]


def over_tcp(count: int) -> list[SocketMail]:
    """Mails at free ports. Another process may take a port before a mail listens at it: then others are tried."""
    for attempt in range(20):
        context = zmq.Context()
        sockets = [context.socket(zmq.ROUTER) for _ in range(count)]
        for socket in sockets:
            socket.bind("tcp://127.0.0.1:*")
        addresses = [socket.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0").decode() for socket in sockets]
        context.destroy(linger=0)
        mails: list[SocketMail] = []
        try:
            for rank in range(count):
                mails.append(SocketMail(addresses, rank))
            return mails
        except ServerError:
            for mail in mails:
                mail.close()
            assert attempt < 19
    raise AssertionError


def receive(mail: SocketMail, seconds: float = SECONDS) -> Received | None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        received = mail.receive()
        if received is not None:
            return received
        time.sleep(0.001)
    return None


@pytest.mark.parametrize("kind", ["tcp", "ipc"])
def test_letters_come_whole_and_in_order(tmp_path: Path, kind: str) -> None:
    addresses = addresses_in(tmp_path, 2)
    mails = over_tcp(2) if kind == "tcp" else [SocketMail(addresses, rank) for rank in range(2)]
    try:
        for mail in mails:
            mail.expect(1 << 22)
        for number in range(5):
            values = np.arange(1 << 18, dtype=np.float32) + number
            assert mails[0].send(1, f"letter {number}".encode(), values)
        for number in range(5):
            received = receive(mails[1])
            assert received is not None
            assert received[:2] == (0, f"letter {number}".encode())
            values = np.arange(1 << 18, dtype=np.float32) + number
            np.testing.assert_array_equal(np.frombuffer(received[2], np.float32), values)
        assert mails[0].send(1, b"without", None)
        assert receive(mails[1]) == (0, b"without", None)
        assert mails[0].send(1, b"too large", np.zeros((1 << 22) + 1, np.uint8))
        assert mails[0].send(1, b"fits", np.zeros(1 << 22, np.uint8))
        received = receive(mails[1])
        assert received is not None
        assert received[1] == b"fits"
        assert mails[1].refused == 1
    finally:
        for mail in mails:
            mail.close()


def test_a_group_that_does_not_read_gets_a_bounded_number_of_letters(tmp_path: Path) -> None:
    mail = SocketMail([f"ipc://{tmp_path}/{rank}" for rank in range(2)], 0)
    try:
        sent = [mail.send(1, b"letter", None) for _ in range(2 * MOST_UNSENT)]
        assert sent == [True] * MOST_UNSENT + [False] * MOST_UNSENT
    finally:
        mail.close()


def test_an_address_beyond_this_host_needs_keys() -> None:
    with pytest.raises(ServerError, match="can be reached from other hosts"):
        SocketMail(["tcp://0.0.0.0:29871", "tcp://127.0.0.1:29872"], 0)


def test_only_groups_with_the_same_keys_are_let_in(tmp_path: Path) -> None:
    given, other = (Credentials.load(make_tenant(tmp_path / name, "run")) for name in ("given", "other"))
    addresses = addresses_in(tmp_path, 2)
    mails = [SocketMail(addresses, rank, given) for rank in range(2)]
    strangers = [
        SocketMail([f"ipc://{tmp_path}/stranger-{number}", addresses[1]], 0, keys)
        for number, keys in enumerate((other, None))
    ]
    try:
        for stranger in strangers:
            assert stranger.send(1, b"from a stranger", None)
        assert mails[0].send(1, b"from a friend", None)
        assert receive(mails[1]) == (0, b"from a friend", None)
        assert receive(mails[1], 0.5) is None
    finally:
        for mail in (*mails, *strangers):
            mail.close()


@given(st.binary(max_size=300))
@settings(deadline=None)
def test_any_bytes_are_a_letter_or_refused(header: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        assert isinstance(decode(header), Letter)


KINDS = [
    "offer",
    "difference",
    "values",
    "push",
    "taken",
    "pull",
    "ask",
    "give",
    "joined",
    "ping",
    "arrived",
    "decline",
    "late",
    "behind",
]


def a_letter(kind: str, **fields: object) -> bytes:
    known: dict[str, object] = {"kind": kind, "session": 1, "table": "weights"}
    return msgspec.msgpack.encode({**known, **fields})


def hostile_messages() -> list[list[bytes]]:
    one = b"\x01\x00"
    found = [[b""], [b"\x01"], [one], [b"\x00\x00" + a_letter("ping")], [b"\xff\xff" + a_letter("ping")]]
    found += [[one + b"\x80"], [one + b"x" * 5000], [one + a_letter("pickle")], [one + a_letter("ping", session=-1)]]
    found += [[one + a_letter("ping", extra=1)], [one + a_letter("ping", table="t" * 600)], [one, *[b"x"] * 3000]]
    spans = [(0, 64), (0, 65), (64, 0), (0, 1 << 61), (1 << 61, 1 << 62), (3, 3)]
    for kind in KINDS:
        for start, stop in spans:
            for payload in ([], [b""], [bytes(255)], [bytes(100)] * 3):
                fields = {"start": start, "stop": stop, "number": 1 << 62, "share": 1.0}
                found.append([one + a_letter(kind, **fields), *payload])
    layout = msgspec.msgpack.encode({"dtype": "float32", "slots": [{"key": "a", "shape": [1 << 61], "start": 0}]})
    found += [[one + a_letter("ask", table=f"table-{number}"), layout] for number in range(200)]
    found += [[one + a_letter("ask"), b"\x92" * 2000], [one + a_letter("offer", share=float("nan"))]]
    return found


def test_hostile_messages_end_nothing_and_are_not_kept(tmp_path: Path) -> None:
    addresses = addresses_in(tmp_path, 2)
    partners = Partners(SocketMail(addresses, 0), Settings(lost_seconds=2.0))
    context = zmq.Context()
    stranger = context.socket(zmq.DEALER)
    try:
        partners.tables.enter("weights", LAYOUT, "")
        partners.open("weights", LAYOUT)
        stranger.connect(addresses[0])
        for message in hostile_messages():
            stranger.send_multipart(message)
        stranger.send_multipart([b"\x01\x00" + encode(Letter("left", 1))])
        assert partners.until(lambda: partners.peers[1].left, SECONDS)
        letters, _ = partners.take("weights")
        assert len(letters) <= 8
        assert all(letter.values is None or letter.values.size == 64 for letter in letters)
        assert partners.refused > 100
        assert len(partners.tables._askers) <= 4
    finally:
        context.destroy(linger=0)
        partners.leave()
        partners.close()
