"""What the launcher reports when a group has ended: to the user, and to the servers."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from hybridps.cli.run.children.child import Child
from hybridps.cli.run.plan import Launch
from hybridps.cli.run.run_log import RunLog
from hybridps.cli.told import done_of, end_of
from hybridps.config.racks import place_in_rack
from hybridps.errors import HybridPSError
from hybridps.ps.keys import Credentials


def how_ended(child: Child) -> str:
    """Return the exit status in words, with the worker that ended first or the host that was lost, if it is known."""
    status = child.status or 0
    text = f"exit status {status}"
    if child.lost_host:
        return f"{text} (no connection to the host {child.lost_host})"
    who = ""
    if child.first_rank is not None:
        who = child.name_of(child.first_rank).removeprefix(f"{child.name} ") + " "
    if status > 128 and status - 128 in signal.valid_signals():
        return f"{text} ({who}killed by signal {status - 128})"
    if child.vanished:
        rule = "all workers must make the same stores and do the same steps"
        return f"{text} ({who}exited before its part of the job was done: {rule})"
    return f"{text} of {who.rstrip()}" if who else text


class Told:
    """What the servers of a launch were told. A later life of a server may not know it, and is told again."""

    def __init__(self) -> None:
        self._lines: dict[str, dict[int, str]] = {}
        """For each server: the last line about each group that has ended and, under -1, about the job's progress."""

    def end(
        self,
        launch: Launch,
        started: Sequence[Sequence[Child]],
        credentials: str | None,
        group: int,
        life: int,
        returns: bool,
    ) -> None:
        """Tell the servers that a life of a group has ended, so that they do not wait for signs of life.

        `started`: the servers of the launch; the last ones are those that the groups use. `credentials`: those of the
        groups, if they were made for this launch. `returns`: whether the group is restarted.
        """
        servers = [server for server in launch.servers if launch.settings.racks == 1 or server.rack is not None]
        job = job_at_servers(launch, credentials) if servers else None
        if job is None:
            return
        place = place_in_rack(group, len(launch.groups), launch.settings.racks, [server.name for server in servers])
        for child in started[-1]:
            if child.name in place.servers:
                self._tell(child, place.group, end_of(job, place.group, life, returns))

    def done(self, launch: Launch, started: Sequence[Sequence[Child]], credentials: str | None, log: RunLog) -> None:
        """Tell the servers that the groups use how much of the job is done. Groups that join the job continue there."""
        job = job_at_servers(launch, credentials) if launch.servers else None
        if job is None or not started:
            return
        for child in started[-1]:
            self._tell(child, -1, done_of(job, log.epoch, log.step))

    def again(self, child: Child) -> None:
        """Tell a server everything again."""
        for line in self._lines.get(child.name, {}).values():
            child.tell(line)

    def _tell(self, child: Child, group: int, line: str) -> None:
        lines = self._lines.setdefault(child.name, {})
        if lines.get(group) != line:
            lines[group] = line
            child.tell(line)


def job_at_servers(launch: Launch, credentials: str | None) -> str | None:
    """Return the name of a launch's job at its servers; None if the folder of the keys is gone."""
    try:
        known = Credentials.of(launch.group_settings(launch.groups[0], (), credentials))
    except HybridPSError:
        return None
    return launch.settings.job if known is None else f"{known.tenant}/{launch.settings.job}"
