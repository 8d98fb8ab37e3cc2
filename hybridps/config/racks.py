"""Which groups and which servers form a rack. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hybridps.errors import PlanError


class PlaceInRack(NamedTuple):
    """The place of a group: the servers of its rack, and its number among the groups of the rack."""

    rack: int
    servers: tuple[str, ...]
    group: int
    groups: int


def place_in_rack(group: int, groups: int, racks: int, servers: Sequence[str]) -> PlaceInRack:
    """Return the place of a group. Racks are ranges of groups, as equal as possible; `servers` are listed rack by rack.

    Raises PlanError if there are more racks than groups, or if racks would have different numbers of servers.

    >>> place_in_rack(1, 3, 2, ["a", "b"])
    PlaceInRack(rack=0, servers=('a',), group=1, groups=2)
    >>> place_in_rack(2, 3, 2, ["a", "b"])
    PlaceInRack(rack=1, servers=('b',), group=0, groups=1)
    """
    check_racks(groups, racks)
    if not servers or len(servers) % racks:
        raise PlanError(
            f"HYBRIDPS_RACKS={racks}, and {len(servers)} servers in HYBRIDPS_SERVERS: list the same number for each "
            "rack, rack by rack"
        )
    rack, each = group * racks // groups, len(servers) // racks
    own = [other for other in range(groups) if other * racks // groups == rack]
    return PlaceInRack(rack, tuple(servers[rack * each : (rack + 1) * each]), own.index(group), len(own))


def check_racks(groups: int, racks: int) -> None:
    """Raise PlanError if there are more racks than groups."""
    if racks > groups:
        raise PlanError(f"HYBRIDPS_RACKS={racks}, and {groups} groups: a rack needs at least one")
