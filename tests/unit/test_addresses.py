"""Addresses are checked as a whole, in the way that ZeroMQ reads them, but for what it reads in part."""

from __future__ import annotations

import pytest
import zmq

from hybridps.addresses import problem_of_metrics_host, problem_of_ps_lite, problem_of_server

EVERYWHERE = ["tcp://127.0.0.1:5555", "tcp://[::1]:65535", "tcp://node-1.example.org:1", "ipc:///tmp/x", "inproc://a"]
BINDING_ONLY = ["tcp://127.0.0.1:*", "tcp://*:*", "tcp://0.0.0.0:0", "tcp://[::]:*", "ipc://*"]
NOWHERE = [
    "",
    "nonsense",
    "127.0.0.1:5555",
    "tcp:/127.0.0.1:5555",
    "TCP://127.0.0.1:5555",
    "tcp://127.0.0.1",
    "tcp://127.0.0.1:",
    "tcp://:5555",
    "tcp://127.0.0.1:22x",
    "tcp://127.0.0.1:x22",
    "tcp://127.0.0.1:-1",
    "tcp://127.0.0.1:+5",
    "tcp://127.0.0.1:5 5",
    "tcp://127.0.0.1:65536",
    "tcp://127.0.0.1:99999999",
    "tcp://127.0.0.1:٥",
    "tcp://::1:5555",
    "tcp://[::1:5555",
    "tcp://[node]:5555",
    "tcp://a host:5555",
    "tcp://a/b:5555",
    "tcp://127.0.0.1:5555/path",
    "tcp://127.0.0.1;127.0.0.2:5555",
    "udp://127.0.0.1:5555",
    "ipc://",
    "inproc://",
]


@pytest.mark.parametrize("address", [*EVERYWHERE, *BINDING_ONLY])
def test_a_server_can_listen(address: str) -> None:
    assert problem_of_server(address, binding=True) is None


@pytest.mark.parametrize("address", EVERYWHERE)
def test_a_client_can_connect(address: str) -> None:
    assert problem_of_server(address) is None


@pytest.mark.parametrize("address", NOWHERE)
def test_what_is_no_address_is_refused(address: str) -> None:
    assert problem_of_server(address)
    assert problem_of_server(address, binding=True)


@pytest.mark.parametrize("address", BINDING_ONLY[:-1])
def test_nobody_connects_to_a_wildcard(address: str) -> None:
    assert problem_of_server(address)


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:*", "tcp://127.0.0.1:0", "tcp://*:*", "ipc://*", "inproc://a"])
def test_zeromq_takes_what_is_not_refused(address: str) -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as socket:
        socket.bind(address)


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::", "::1", "localhost"])
def test_metrics_can_be_exposed(host: str) -> None:
    assert problem_of_metrics_host(host) is None


@pytest.mark.parametrize("host", ["", "127.0.0.1:9100", "*", "a host", "http://a"])
def test_metrics_cannot_be_exposed(host: str) -> None:
    assert problem_of_metrics_host(host)


def test_ps_lite() -> None:
    assert problem_of_ps_lite("ps-lite://127.0.0.1:9000?groups=2&servers=1") is None
    for address in ("tcp://a:1", "ps-lite://a:9000", "ps-lite://a:90x?groups=2&servers=1", "ps-lite://:1?groups=2"):
        assert problem_of_ps_lite(address)
