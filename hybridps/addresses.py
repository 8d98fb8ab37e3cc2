"""Addresses of servers, checked as a whole before anything starts.

ZeroMQ reads as much of an address as it understands: it takes `tcp://127.0.0.1:22x` for port 22. The functions here
return None for an address that can be used, and otherwise the reason why it cannot.
"""

from __future__ import annotations

import re
from ipaddress import ip_address

_HOST_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?")
_PS_LITE = re.compile(r"ps-lite://(?P<host>[^:/?]+):(?P<port>[^?]*)\?.+")


def problem_of_server(address: str) -> str | None:
    """Why no client can connect to this address: tcp://HOST:PORT, ipc://PATH or inproc://NAME."""
    return _problem(address, binding=False)


def problem_of_bind(address: str) -> str | None:
    """Why no server can listen at this address. The host and the port of tcp may be `*`."""
    return _problem(address, binding=True)


def problem_of_ps_lite(address: str) -> str | None:
    """Why this is not the address of MXNet's own servers: ps-lite://HOST:PORT?groups=G&servers=S."""
    parts = _PS_LITE.fullmatch(address)
    if parts is None:
        return "the backend mxnet needs the one address ps-lite://HOST:PORT?groups=G&servers=S that its servers print"
    return _problem_of_host(parts["host"], wildcard=False) or _problem_of_port(parts["port"], wildcard=False)


def problem_of_metrics_host(host: str) -> str | None:
    """Why metrics cannot be exposed on this host: a host name or an IP address, without a port."""
    try:
        ip_address(host)
    except ValueError:
        return _problem_of_host(host, wildcard=False)
    return None


def _problem(address: str, binding: bool) -> str | None:
    scheme, _, place = address.partition("://")
    if scheme in ("ipc", "inproc"):
        return None if place else f"it names nothing after {scheme}://"
    host, colon, port = place.rpartition(":")
    if scheme != "tcp" or not colon:
        return "it must have the form tcp://HOST:PORT" + (" or tcp://HOST:*" if binding else "")
    return _problem_of_host(host, binding) or _problem_of_port(port, binding)


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
