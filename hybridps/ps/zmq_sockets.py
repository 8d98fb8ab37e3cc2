"""What both sides do with their ZeroMQ sockets."""

from __future__ import annotations

import _thread
import contextlib
import os
import socket
import sys
import threading
from ipaddress import ip_address
from typing import Any

import zmq

_READABLE = int(zmq.POLLIN)
"""As an integer: the flags' own operations would take as long as a small message."""


class Context(zmq.Context):  # type: ignore[type-arg]
    """A ZeroMQ context whose end nobody waits for without bound: garbage collection least of all.

    Its own would wait for ever for sockets that are collected after it. And seldom, after a connection was reset,
    ZeroMQ was seen not to end though all sockets are closed.
    """

    def end(self, seconds: float) -> bool:
        """Release it, its sockets being closed, within so many seconds; else in the background. Whether it is done."""
        ends = threading.Thread(target=self.term, name="hybridps-zeromq-end", daemon=True)
        ends.start()
        ends.join(seconds)
        return not ends.is_alive()

    def __del__(self) -> None:
        if not self.closed and not sys.is_finalizing():
            _thread.start_new_thread(self.term, ())


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
