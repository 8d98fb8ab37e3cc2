"""The servers of a launch: starts them, reads their addresses and who joins, and tells them how the groups end."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import chain, groupby
from pathlib import Path

from hybridps.cli.run.children.child import Child, running
from hybridps.cli.run.children.output import Screen
from hybridps.cli.run.children.processes import Processes
from hybridps.cli.run.groups.command import Command
from hybridps.cli.run.groups.ending import Told, how_ended
from hybridps.cli.run.plan import Launch, ServerLaunch
from hybridps.cli.run.run_log import RunLog
from hybridps.cli.run.signals import Signals
from hybridps.cli.told import AGAIN, Groups, changes, groups_in
from hybridps.errors import ServerError
from hybridps.processes import SAYS, START_SECONDS, child_environment, without_rank_marks
from hybridps.ps.keys import Credentials, make_tenant


class LaunchedServers:
    """The servers of a launch; there may be none. After a signal, nothing is waited for."""

    def __init__(self, launch: Launch, processes: Processes, screen: Screen, log: RunLog, signals: Signals) -> None:
        self.tiers: list[list[Child]] = []
        """The servers by tier: the parents, if there are racks, and last the servers that the groups use."""
        self.credentials: str | None = None
        """The credentials of the groups, if keys are made for this launch."""
        self._launch = launch
        self._processes = processes
        self._screen = screen
        self._log = log
        self._signals = signals
        self._keys: str | None = None
        self._addresses: dict[str, str] = {}
        """The addresses of the servers that have printed theirs, by their names."""
        self._told = Told()
        self._others = Groups()
        """The groups of the job, as last reported by its first server."""

    @property
    def addresses(self) -> list[str]:
        """The addresses of the servers that the groups use."""
        return [self._addresses[server.name] for server in self.tiers[-1]] if self.tiers else []

    @property
    def children(self) -> list[Child]:
        return [*chain(*self.tiers)]

    @property
    def gone(self) -> list[str]:
        """The names of the servers that have ended for good: they have no restarts left, or were not supervised."""
        return [server.name for server in self.children if server.status is not None]

    def start(self) -> None:
        """Start the servers; those of racks last, as they need the addresses of their parents.

        Raises ServerError if one does not print its address.
        """
        with ExitStack() as stack:
            if self._launch.makes_keys:
                self._make_keys(Path(self._processes.make_folder(stack)))
            for _, servers in groupby(self._launch.servers, key=lambda server: server.rack is None):
                parents = self.addresses
                self.tiers.append([])
                for server in servers:
                    self.tiers[-1].append(self._start_server(server, parents))
                self._await_addresses()  # once they have printed these, they have read their keys
                if self._signals:
                    return

    def _make_keys(self, folder: Path) -> None:
        """Make keys for this launch. Servers read theirs from the folder, groups get theirs in the environment."""
        theirs = make_tenant(folder, "run")
        self._keys, self.credentials = str(folder), Credentials.load(theirs).text()

    def _start_server(self, server: ServerLaunch, parents: list[str]) -> Child:
        command = command_of_server(self._launch, server, parents, self._keys, self.credentials)
        return self._processes.start(
            server.name,
            command.words,
            command.environ,
            death_signal=signal.SIGKILL,
            listens=_listens(self._launch),
            on_line=lambda line: self._hear(server.name, line),
        )

    def _hear(self, name: str, line: str) -> bool:
        """Handle a line that a server has printed. Return whether to hide it."""
        if line.startswith(SAYS):
            self._addresses[name] = line.removeprefix(SAYS)
        if line == AGAIN:
            self._told.again(next(child for child in self.tiers[-1] if child.name == name))
        told = groups_in(line)
        if told is not None and self.tiers[-1][0].name == name:
            self._note_groups(told[1])
        return told is not None or line == AGAIN

    def _note_groups(self, now: Groups) -> None:
        """Note which groups have joined the job, as its first server reports."""
        for line in changes(self._others.joined, now):
            self._screen.message(line)
        if now.joined != self._others.joined:
            self._log.joined(sorted(now.joined), now.groups, now.workers)
        self._others = now

    def _await_addresses(self) -> None:
        """Wait until all servers started so far have printed their addresses. Raises ServerError."""
        started = self.children

        def silent() -> list[Child]:
            return [server for server in started if server.name not in self._addresses]

        in_time = self._processes.until(
            lambda: bool(self._signals) or not silent() or running(started) != started, START_SECONDS
        )
        if self._signals or not silent():
            return
        first = silent()[0]
        what = f"ended with {how_ended(first)}" if in_time else f"printed no address within {START_SECONDS:g} seconds"
        raise ServerError(f"{first.name} {what}, so no group was started; see its output above")

    def tell_end(self, launch: Launch, group: int, life: int, returns: bool) -> None:
        """Tell the servers that the processes of a life of a group have ended, and whether the group `returns`."""
        self._told.end(launch, self.tiers, self.credentials, group, life, returns)

    def tell_progress(self, launch: Launch) -> None:
        """Tell the servers how much of the job is done."""
        self._told.done(launch, self.tiers, self.credentials, self._log)

    def await_others(self) -> None:
        """Wait until the groups that have joined the job have left, because they need the servers."""
        servers = running(self.tiers[-1]) if self.tiers else []
        if not servers or not self._others.there or self._signals:
            return
        names = ", ".join(map(str, sorted(self._others.there)))
        self._screen.message(f"waiting for groups that have joined the job: {names}")
        self._processes.until(lambda: bool(self._signals) or not self._others.there or running(servers) != servers)


def command_of_server(
    launch: Launch, server: ServerLaunch, parents: Sequence[str], keys: str | None, credentials: str | None
) -> Command:
    """Return the command that starts a server.

    `parents` are addresses. If keys are made for this launch, `keys` is their folder; `credentials` are for the
    parents.
    """
    words = [sys.executable, "-m", "hybridps", "serve", "--bind", launch.bind]
    words += ["--insecure"] if launch.insecure else []
    words += ["--told-ends"] if _listens(launch) else []
    settings = launch.server_settings(server, parents, keys, credentials)
    given = {**without_rank_marks(os.environ), **launch.environment.servers}
    return Command((*words, *server.options), child_environment(given, settings))


def _listens(launch: Launch) -> bool:
    """Return whether the servers read what the launcher writes to them."""
    return launch.settings.backend == "hybridps"
