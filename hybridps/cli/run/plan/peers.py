"""Where groups that exchange weights without servers meet."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from hybridps.cli.run.plan.hosts import LOOPBACK, is_here
from hybridps.cli.run.plan.launch import GroupLaunch
from hybridps.config import PREFIX, Settings
from hybridps.errors import ConfigError

_FIRST_PORT, _PORTS = 12000, 16000
"""Where groups on several hosts listen to each other: ports that systems do not give away by themselves."""


def do_gossip(settings: Settings) -> bool:
    """Whether the groups exchange weights without servers. `settings`: as the ranks see them."""
    if settings.algorithm is None:
        return False
    from hybridps.algorithms import definition

    return definition(settings.algorithm).gossips


def might_gossip(settings: Settings, elsewhere: Sequence[str]) -> bool:
    """Whether the script may name an algorithm that gossips, which on one host costs nothing to prepare. `elsewhere`:
    the other hosts.
    """
    return settings.algorithm is None and not elsewhere


def find_peers(groups: Sequence[GroupLaunch], settings: Settings, here: str) -> tuple[str, ...]:
    """Where the groups listen to each other: as given, or on their hosts. Empty if they are all on this host.

    `here`: how other hosts reach this one. Raises ConfigError for another number than that of the groups.
    """
    if settings.peers and len(settings.peers) != len(groups):
        raise ConfigError(
            f"{PREFIX}PEERS has {len(settings.peers)} addresses, and there are {len(groups)} groups: give one for each"
        )
    if settings.peers or here == LOOPBACK:
        return settings.peers
    first = _FIRST_PORT + secrets.randbelow(_PORTS - len(groups))
    names = [here if is_here(group.hosts[0].name) else group.hosts[0].name for group in groups]
    return tuple(f"tcp://{name}:{first + index}" for index, name in enumerate(names))
