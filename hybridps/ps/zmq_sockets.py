"""What both sides do with their ZeroMQ sockets."""

from __future__ import annotations

import _thread
import contextlib
import itertools
import os
import socket
import sys
import threading
from ipaddress import ip_address
from typing import Any

import zmq

_READABLE = int(zmq.POLLIN)
"""As an integer, because the operations of ZeroMQ's flags would take as long as a small message."""

_monitors = itertools.count()


class Context(zmq.Context):  # type: ignore[type-arg]
    """A ZeroMQ context that can be ended in bounded time, also by garbage collection.

    ZeroMQ's own would wait forever for sockets that are collected after it. In rare cases, after a connection was
    reset, ZeroMQ did not end although all sockets were closed.
    """

    def end(self, seconds: float) -> bool:
        """Release the context within `seconds`, or else in the background. Its sockets must be closed.

        Returns whether it was released in time.
        """
        ends = threading.Thread(target=self.term, name="hybridps-zeromq-end", daemon=True)
        ends.start()
        ends.join(seconds)
        return not ends.is_alive()

    def __del__(self) -> None:
        if not self.closed and not sys.is_finalizing():
            _thread.start_new_thread(self.term, ())


def monitor_of(zmq_socket: Any, events: int) -> Any:
    """Return a socket that receives these events of another one.

    Its address is unique. The address that pyzmq would choose contains a file descriptor, which another socket may get
    while the address is still in use.
    """
    return zmq_socket.get_monitor_socket(events, f"inproc://monitor-{next(_monitors)}")


def has_message(zmq_socket: Any) -> bool:
    """Return whether a message can be received without waiting."""
    return bool(zmq_socket.getsockopt(zmq.EVENTS) & _READABLE)


def send_unpaced(descriptor: int) -> None:
    """Make a TCP socket of this process send as fast as the other side reads, if its address is a loopback address.

    There is no network to protect from congestion, and pacing (BBR) would cost a fifth of the time of large messages.
    Other sockets are left alone, and so are all if the system does not allow the change.
    """
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as tcp:
        if tcp.family in (socket.AF_INET, socket.AF_INET6) and ip_address(tcp.getsockname()[0]).is_loopback:
            tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
