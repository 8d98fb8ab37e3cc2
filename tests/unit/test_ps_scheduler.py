"""The port of MXNet's scheduler."""

from __future__ import annotations

import socket

import pytest
import zmq

from hybridps.cli.serve.mxnet import reserved_port


def test_a_reserved_port_is_for_whoever_is_told() -> None:
    with reserved_port("127.0.0.1") as port, zmq.Context() as context, context.socket(zmq.ROUTER) as scheduler:
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
        scheduler.bind(f"tcp://*:{port}")  # as ps-lite does
        socket.create_connection(("127.0.0.1", port)).close()


def test_no_port_of_another_host() -> None:
    with pytest.raises(OSError, match="assign"), reserved_port("192.0.2.1"):
        pass
