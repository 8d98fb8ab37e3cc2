"""Hosts and their slots, and how workers share them. Only `is_here` and `address_seen_by` depend on this host."""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

from hybridps.errors import ConfigError, PlanError

LOOPBACK = "127.0.0.1"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class Host:
    """A host, and the number of workers that it takes. `is_counted`: whether that number was given."""

    name: str
    slots: int
    is_counted: bool = field(default=True, compare=False, repr=False)

    def __str__(self) -> str:
        return f"{self.name}:{self.slots}"


def parse_hosts(text: str) -> tuple[Host, ...]:
    """Return the hosts of `h1:4,h2:4`; a host without a number has one slot. Raises ConfigError."""
    return tuple(_host(part.strip()) for part in text.split(",") if part.strip())


def parse_hostfile(text: str) -> tuple[Host, ...]:
    """Return the hosts of lines `h1 slots=4` or `h1:4`, with `#` comments. Raises ConfigError."""
    hosts = []
    for line in text.splitlines():
        words = line.partition("#")[0].split()
        if not words:
            continue
        slots = [word.removeprefix("slots=") for word in words[1:] if word.startswith("slots=")]
        hosts.append(_host(":".join([words[0], *slots])))
    return tuple(hosts)


def spread_workers(hosts: Sequence[Host], workers: int) -> tuple[Host, ...]:
    """Return the hosts with slots for the workers, spread as evenly as possible, unless a host has a number of its own.

    >>> spread_workers(parse_hosts("a,b"), 3)
    (Host(name='a', slots=2), Host(name='b', slots=1))
    """
    if not hosts or workers <= len(hosts) or any(host.is_counted for host in hosts):
        return tuple(hosts)
    each, more = divmod(workers, len(hosts))
    return tuple(Host(host.name, each + (index < more)) for index, host in enumerate(hosts))


def split_hosts(hosts: Sequence[Host], sizes: Sequence[int]) -> tuple[tuple[Host, ...], ...]:
    """Assign slots to each group, in order. Raises PlanError if there are not enough slots.

    >>> split_hosts(parse_hosts("a:3,b:3"), (2, 3))
    ((Host(name='a', slots=2),), (Host(name='a', slots=1), Host(name='b', slots=2)))
    """
    slots = [host.name for host in hosts for _ in range(host.slots)]
    if sum(sizes) > len(slots):
        named = ", ".join(map(str, hosts))
        raise PlanError(f"{sum(sizes)} workers do not fit into the {len(slots)} slots of {named}")
    parts, start = [], 0
    for size in sizes:
        same = groupby(slots[start : start + size])
        parts.append(tuple(Host(name, len(list(each))) for name, each in same))
        start += size
    return tuple(parts)


def is_here(name: str) -> bool:
    """Return whether this name refers to this host."""
    own = socket.gethostname()
    return name in ("localhost", LOOPBACK, own, own.partition(".")[0], socket.getfqdn())


def address_seen_by(name: str) -> str:
    """Return the address from which this host reaches another one. Raises ConfigError if it cannot reach it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((name, 9))  # a datagram socket: this sends nothing
        except OSError as error:
            reason = error.strerror or error
            raise ConfigError(f"the host {name!r} cannot be reached: {reason}; check the names after -H") from None
        return str(probe.getsockname()[0])


def _host(text: str) -> Host:
    name, colon, slots = text.partition(":")
    if not _NAME.fullmatch(name) or (colon and not (slots.isdecimal() and int(slots))):
        raise ConfigError(f"{text!r} is not a host: write NAME or NAME:SLOTS, with at least one slot")
    return Host(name, int(slots or 1), is_counted=bool(slots))
