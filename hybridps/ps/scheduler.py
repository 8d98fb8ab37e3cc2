"""Where MXNet's own servers are found: the address of their scheduler."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

from hybridps.errors import ServerError

SCHEME = "ps-lite"


@contextmanager
def reserved_port(host: str) -> Iterator[int]:
    """A port of this host that no connection and no other listener gets by chance, for ps-lite wants to be told one.

    ps-lite can listen on it, as it reuses addresses. Raises OSError for a host that is not this one.
    """
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind((host, 0))
        yield int(reserved.getsockname()[1])


class Scheduler(NamedTuple):
    """The scheduler of a ps-lite tier, and how many are to come to it. Its text is `ps-lite://HOST:PORT?groups=G&servers=S`.

    >>> Scheduler.parse(["ps-lite://127.0.0.1:9000?groups=2&servers=1"])
    Scheduler(host='127.0.0.1', port=9000, groups=2, servers=1)
    """

    host: str
    port: int
    groups: int
    """Groups of the job: the workers of ps-lite."""
    servers: int

    def __str__(self) -> str:
        return f"{SCHEME}://{self.host}:{self.port}?groups={self.groups}&servers={self.servers}"

    @classmethod
    def parse(cls, addresses: Sequence[str]) -> Scheduler:
        """The scheduler that the only one of `addresses` names. Raises ServerError for anything else."""
        try:
            (address,) = addresses
            parts = urlsplit(address)
            numbers = {name: int(text) for name, (text,) in parse_qs(parts.query, strict_parsing=True).items()}
            scheduler = cls(parts.hostname or "", parts.port or 0, **numbers)
            if parts.scheme != SCHEME or not scheduler.host or min(scheduler[1:]) < 1:
                raise ValueError
        except (ValueError, TypeError):
            raise ServerError(
                f"{', '.join(addresses)} is not where MXNet's servers are: the backend mxnet needs the one address "
                f"{SCHEME}://HOST:PORT?groups=G&servers=S that `hybridps serve` says"
            ) from None
        return scheduler

    def environment(self, role: str, host: str) -> dict[str, str]:
        """What ps-lite reads in a process of this role, which the others reach at `host`."""
        return {
            "DMLC_ROLE": role,
            "DMLC_PS_ROOT_URI": self.host,
            "DMLC_PS_ROOT_PORT": str(self.port),
            "DMLC_NUM_WORKER": str(self.groups),
            "DMLC_NUM_SERVER": str(self.servers),
            "DMLC_NODE_HOST": host,
        }
