"""The socket that a server listens on."""

from __future__ import annotations

import os
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

import zmq

from hybridps.errors import ServerError
from hybridps.ps.keys import AllowList

MOST_UNREAD = 1 << 16
"""Answers that wait for one connection: whoever reads none is taken as lost then."""


def check_local(address: str) -> None:
    """Raise ServerError if an address can be reached from other hosts."""
    if not _is_local(address):
        raise ServerError(
            f"{address} can be reached from other hosts, and nothing tells who may: make keys with `hybridps keys`, "
            "bind to tcp://127.0.0.1:*, or give insecure=True (--insecure) in a network that you trust"
        )


def memory_of_host() -> int:
    """Bytes."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def listen(context: Any, address: str, largest_message_bytes: int, allowed: AllowList | None = None) -> Any:
    """The socket, which demands keys if there are any allowed. Raises ServerError if it cannot be had."""
    socket = context.socket(zmq.ROUTER)
    socket.setsockopt(zmq.MAXMSGSIZE, largest_message_bytes)
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    # Few messages of each connection: what is read waits in the accounts of the tenants.
    socket.setsockopt(zmq.RCVHWM, 64)
    # A router drops what is over the mark: far more than a group that reads leaves waiting, whose values are counted.
    socket.setsockopt(zmq.SNDHWM, MOST_UNREAD)
    if allowed is not None:
        allowed.secure(socket)
    try:
        socket.bind(address)
    except zmq.ZMQError as error:
        socket.close(linger=0)
        raise ServerError(f"cannot serve at {address}: {error.strerror or error}; use another address") from None
    return socket


def _is_local(address: str) -> bool:
    parts = urlsplit(address)
    try:
        return parts.scheme == "ipc" or parts.hostname == "localhost" or ip_address(parts.hostname or "").is_loopback
    except ValueError:
        return False
