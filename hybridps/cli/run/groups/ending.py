"""What is said when a group has ended: to the user, and to the servers."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from hybridps.cli.run.plan import Launch
from hybridps.cli.run.processes import Child
from hybridps.errors import HybridPSError
from hybridps.processes import RETURNS
from hybridps.ps.keys import Credentials
from hybridps.racks import place_in_rack


def how_ended(child: Child) -> str:
    """The exit status in words, with the rank that ended first if mpirun named it."""
    status = child.status or 0
    text = f"exit status {status}"
    rank = child.first_rank
    who = "" if rank is None else f"rank {rank} "
    if status > 128 and status - 128 in signal.valid_signals():
        return f"{text} ({who}killed by signal {status - 128})"
    how = "exited before its part of the job was done" if child.vanished else "ended first"
    return f"{text} ({who}{how})" if rank is not None else text


def tell_servers(
    launch: Launch, started: Sequence[Sequence[Child]], credentials: str | None, group: int, returns: bool
) -> None:
    """Tell the servers that a group has ended: if it has not left, they need not wait for its sign of life.

    `started`: the servers of the launch; the last ones are those that groups meet at. `credentials`: as the groups have
    them, if they were made for this launch. `returns`: the group is started again.
    """
    servers = [server for server in launch.servers if launch.settings.racks == 1 or server.rack is not None]
    if not servers:
        return
    place = place_in_rack(group, len(launch.groups), launch.settings.racks, [server.name for server in servers])
    try:
        known = Credentials.of(launch.group_settings(launch.groups[group], (), credentials))
    except HybridPSError:  # the folder of the keys is gone: the servers find out by themselves
        return
    job = launch.settings.job if known is None else f"{known.tenant}/{launch.settings.job}"
    for child in started[-1]:
        if child.name in place.servers:
            child.tell(f"{job} {place.group} {RETURNS if returns else ''}".rstrip())
