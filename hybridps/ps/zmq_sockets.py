"""What both sides do with their ZeroMQ sockets."""

from __future__ import annotations

import contextlib
import os
import socket
from ipaddress import ip_address
from typing import Any

import zmq

_READABLE = int(zmq.POLLIN)
"""As an integer: the flags' own operations would take as long as a small message."""


def has_message(zmq_socket: Any) -> bool:
    """Whether a message can be received without waiting."""
    return bool(zmq_socket.getsockopt(zmq.EVENTS) & _READABLE)


def send_unpaced(descriptor: int) -> None:
    """Have a TCP socket of this process send as fast as the other side reads, if its address is of the loopback.

    There is no network to be gentle with. Where the system paces what is sent (BBR), that takes a fifth of the time of
    large messages. Does nothing to any other socket, or where this cannot be had.
    """
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as tcp:
        if tcp.family in (socket.AF_INET, socket.AF_INET6) and ip_address(tcp.getsockname()[0]).is_loopback:
            tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
