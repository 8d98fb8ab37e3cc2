"""Connections inside of one host are not paced, whatever the usual congestion control; and monitors of sockets."""

from __future__ import annotations

import os
import socket

import pytest
import zmq
from in_thread import in_thread

from hybridps.config import Settings
from hybridps.ps.client import Client, sockets
from hybridps.ps.server import Server, door
from hybridps.ps.zmq_sockets import send_unpaced

pytestmark = [
    pytest.mark.timeout(30),
    pytest.mark.skipif(not hasattr(socket, "TCP_CONGESTION"), reason="Linux alone lets a socket choose"),
]


def congestion(tcp: socket.socket) -> bytes:
    return tcp.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0")


def test_only_connections_of_the_loopback_change() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.create_connection(listening.getsockname()) as near:
        send_unpaced(near.fileno())
        assert congestion(near) == b"reno"
    with socket.socket() as anywhere:
        usual = congestion(anywhere)
        send_unpaced(anywhere.fileno())
        assert congestion(anywhere) == usual


def test_other_descriptors_are_not_changed(tmp_path) -> None:
    inner, outer = os.pipe()
    with socket.socket(socket.AF_UNIX) as local, socket.socket(socket.AF_UNIX) as unnamed:
        local.bind(str(tmp_path / "socket"))
        for descriptor in (inner, local.fileno(), unnamed.fileno(), -1):
            send_unpaced(descriptor)
        assert local.getsockname()
    for descriptor in (inner, outer):
        os.close(descriptor)


def test_both_ends_of_a_client_and_its_server(monkeypatch) -> None:
    seen = []

    def look(descriptor: int) -> None:
        send_unpaced(descriptor)
        with socket.socket(fileno=os.dup(descriptor)) as tcp:
            seen.append((tcp.getsockname(), tcp.getpeername(), congestion(tcp)))

    for module in (sockets, door):
        monkeypatch.setattr(module, "send_unpaced", look)
    with (
        in_thread(Server(threads=1)) as server,
        Client([server.address], job="job", group=0, groups=1, settings=Settings()),
    ):
        pass
    ends = {(own, other) for own, other, _ in seen}
    assert {(other, own) for own, other in ends} & ends, seen
    assert {kind for _, _, kind in seen} == {b"reno"}


def test_a_monitor_needs_no_address_of_a_socket_that_is_being_closed() -> None:
    """Such a socket's descriptor may be used again before its monitor's address is free."""
    with zmq.Context() as context:
        with zmq.Context() as other, other.socket(zmq.DEALER) as probe:
            first = probe.FD
        taken = [context.socket(zmq.PAIR) for _ in range(first, first + 100)]
        for number, each in enumerate(taken):
            each.bind(f"inproc://monitor.s-{first + number}")
        server = Server("inproc://server", context=context)
        options = {"job": "job", "group": 0, "groups": 1, "settings": Settings(), "context": context}
        with in_thread(server), Client(["inproc://server"], **options):
            pass
        for each in taken:
            each.close(linger=0)
