"""Addresses of servers, checked as a whole before anything starts.

ZeroMQ reads as much of an address as it understands: it takes `tcp://127.0.0.1:22x` for port 22. The functions
`problem_of_...` return None for an address that can be used, and otherwise the reason why it cannot. `Scheduler` is the
address of MXNet's own servers.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from ipaddress import ip_address
from typing import NamedTuple
from urllib.parse import urlsplit

from hybridps.errors import ServerError

_HOST_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?")
_PS_LITE = re.compile(r"ps-lite://([^:/?]+):([^?]*)\?groups=([1-9][0-9]*)&servers=([1-9][0-9]*)")
_OF_PS_LITE = "the backend mxnet needs the one address ps-lite://HOST:PORT?groups=G&servers=S that its servers print"


def problem_of_server(address: str, binding: bool = False) -> str | None:
    """Return why no client can connect to this address: tcp://HOST:PORT, ipc://PATH or inproc://NAME.

    With `binding`, return why no server can listen at it: host and port of tcp may then be `*`.
    """
    scheme, _, place = address.partition("://")
    if scheme in ("ipc", "inproc"):
        return None if place else f"it names nothing after {scheme}://"
    host, colon, port = place.rpartition(":")
    if scheme != "tcp" or not colon:
        return "it must have the form tcp://HOST:PORT" + (" or tcp://HOST:*" if binding else "")
    return _problem_of_host(host, binding) or _problem_of_port(port, binding)


def problem_of_ps_lite(address: str) -> str | None:
    """Return why this is not the address of MXNet's own servers: ps-lite://HOST:PORT?groups=G&servers=S."""
    parts = _PS_LITE.fullmatch(address)
    if parts is None:
        return _OF_PS_LITE
    return _problem_of_host(parts[1], wildcard=False) or _problem_of_port(parts[2], wildcard=False)


def problem_of_metrics_host(host: str) -> str | None:
    """Return why metrics cannot be exposed on this host: a host name or an IP address, without a port."""
    try:
        ip_address(host)
    except ValueError:
        return _problem_of_host(host, wildcard=False)
    return None


def is_local(address: str) -> bool:
    """Return whether only processes of this host can reach an address.

    >>> is_local("tcp://127.0.0.1:5555"), is_local("ipc:///tmp/x"), is_local("tcp://*:5555")
    (True, True, False)
    """
    parts = urlsplit(address)
    with contextlib.suppress(ValueError):
        local = parts.scheme in ("ipc", "inproc") or parts.hostname == "localhost"
        return local or ip_address(parts.hostname or "").is_loopback
    return False


class Scheduler(NamedTuple):
    """The scheduler of ps-lite, with the numbers of groups and servers that it expects. Its text is its address.

    >>> Scheduler.parse(["ps-lite://127.0.0.1:9000?groups=2&servers=1"])
    Scheduler(host='127.0.0.1', port=9000, groups=2, servers=1)
    """

    host: str
    port: int
    groups: int
    """The number of groups of the job, which are the workers of ps-lite."""
    servers: int

    def __str__(self) -> str:
        return f"ps-lite://{self.host}:{self.port}?groups={self.groups}&servers={self.servers}"

    @classmethod
    def parse(cls, addresses: Sequence[str]) -> Scheduler:
        """Return the scheduler that the only one of `addresses` names. Raises ServerError for anything else."""
        text = ", ".join(addresses)
        parts = _PS_LITE.fullmatch(text)
        if parts is None or problem_of_ps_lite(text):
            raise ServerError(f"{text} is not where MXNet's servers are: {_OF_PS_LITE}")
        host, port, groups, servers = parts.groups()
        return cls(host, int(port), int(groups), int(servers))

    def environment(self, role: str, host: str) -> dict[str, str]:
        """Return the variables that ps-lite reads in a process of this role, which the others reach at `host`."""
        return {
            "DMLC_ROLE": role,
            "DMLC_PS_ROOT_URI": self.host,
            "DMLC_PS_ROOT_PORT": str(self.port),
            "DMLC_NUM_WORKER": str(self.groups),
            "DMLC_NUM_SERVER": str(self.servers),
            "DMLC_NODE_HOST": host,
        }


def _problem_of_host(host: str, wildcard: bool) -> str | None:
    if (wildcard and host == "*") or _HOST_NAME.fullmatch(host):
        return None
    try:
        ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return f"{host!r} is neither a host name nor an IP address"
    return None if host.startswith("[") and host.endswith("]") else "an IPv6 address must be in brackets, as in [::1]"


def _problem_of_port(port: str, wildcard: bool) -> str | None:
    if wildcard and port in ("*", "0"):
        return None
    if re.fullmatch(r"[0-9]{1,5}", port) and 1 <= int(port) <= 65535:
        return None
    return f"the port {port!r} must be a number from 1 to 65535" + (", or * for any free port" if wildcard else "")
