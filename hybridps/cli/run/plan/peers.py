"""Where groups that exchange weights without servers listen to each other."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from hybridps.cli.run.plan.hosts import LOOPBACK, is_here
from hybridps.cli.run.plan.launch import GroupLaunch
from hybridps.config import PREFIX, Settings
from hybridps.errors import ConfigError

_FIRST_PORT, _PORTS = 12000, 16000
"""The ports at which groups on several hosts listen to each other: systems do not assign these by themselves."""


def do_gossip(settings: Settings) -> bool:
    """Return whether the groups exchange weights without servers. `settings`: as the ranks see them."""
    if settings.algorithm is None:
        return False
    from hybridps.algorithms import definition

    return definition(settings.algorithm).gossips


def might_gossip(settings: Settings, elsewhere: Sequence[str]) -> bool:
    """Return whether the script may choose an algorithm that gossips. Only on one host, where preparing for it is free.

    `elsewhere`: the other hosts.
    """
    return settings.algorithm is None and not elsewhere


def find_peers(groups: Sequence[GroupLaunch], settings: Settings, here: str) -> tuple[str, ...]:
    """Return where the groups listen to each other: as configured, or on their hosts. Empty if all are on this host.

    `here`: the address at which other hosts reach this one. Raises ConfigError unless there is an address for each
    group.
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
