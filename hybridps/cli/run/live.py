"""What a launch shows of itself while it runs: the live folder of its run, and its own status there."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import replace
from pathlib import Path

import msgspec

from hybridps.cli.run.children.output import Screen
from hybridps.cli.run.groups.launched import LaunchedGroups
from hybridps.cli.run.groups.lives import Lives
from hybridps.cli.run.plan import Launch
from hybridps.cli.run.run_log import RunLog
from hybridps.cli.run.servers import LaunchedServers
from hybridps.cli.run.signals import Signals
from hybridps.live import GroupStatus, LaunchStatus, Report, StatusFile
from hybridps.live.folder import LiveFolder
from hybridps.watch import Reader, Watcher, make_readers
from hybridps.watch.line import JobLine
from hybridps.watch.restarted import RestartedGroups
from hybridps.watch.silent import SilentGroups
from hybridps.watch.slow import SlowGroups

_MOST_REPORTS = 1000
"""The limit on the reports in a status, so that it stays short with many workers."""


class LaunchLive:
    """The live folder of a launch. `launch` is the launch as given, with the folder that its processes write to.

    If the folder cannot be made, the screen shows why, and the launch runs without it. Raises the errors of
    `make_readers`, before anything is made or shown.
    """

    def __init__(self, launch: Launch, screen: Screen) -> None:
        self.launch = launch
        self._screen = screen
        self._made: LiveFolder | None = None
        self._file: StatusFile | None = None
        self._line = JobLine()
        self._groups = SlowGroups(launch.settings.slow_factor)
        self._restarted = RestartedGroups()
        self._silent = SilentGroups(launch.settings.lost_seconds, launch.settings.deadline_seconds)
        self._log: RunLog | None = None
        self._watcher: Watcher | None = None
        self._readers, self._said = make_readers(launch.settings)
        try:
            self._made = LiveFolder(launch.settings.run_folder)
        except OSError as error:
            screen.message(f"`hybridps top` cannot show this run: {error.strerror or error}")
            for reader in self._readers:
                reader.close()
            return
        settings = msgspec.structs.replace(launch.settings, live_folder=str(self._made.path))
        self.launch = replace(launch, settings=settings)

    @property
    def entry(self) -> Path | None:
        """The entry that is to be removed if this process is killed."""
        return None if self._made is None else self._made.entry

    def begin(
        self, servers: LaunchedServers, groups: LaunchedGroups, lives: Lives, log: RunLog, signals: Signals
    ) -> None:
        """Start to write the status of the launch, and to watch its groups."""
        if self._made is None:
            return
        self._log = log
        settings, started_at, host = self.launch.settings, time.time(), socket.gethostname()

        def status() -> LaunchStatus:
            known = _groups(self.launch, groups, lives)
            running = {group.number for group in known if group.running}
            slow = {number: found.reason for number, found in list(self._groups.named.items())}
            return LaunchStatus(
                run=settings.launch or "",
                host=host,
                pid=os.getpid(),
                started_at=started_at,
                command=list(self.launch.command),
                workers=sum(group.size for group in self.launch.groups),
                groups=known,
                servers=[server.name for server in self.launch.servers],
                lost_servers=[child.name for child in servers.children if child.status is not None],
                run_folder=settings.run_folder,
                reports=_reports(log),
                slow={number: reason for number, reason in slow.items() if number in running},
                message=self._screen.said,
                signal=signals.name,
            )

        self._file = StatusFile(self._made.path, "launcher", status)
        readers: list[Reader] = [self._line] if self._screen.shows_bars else []
        if len(self.launch.groups) > 1:
            readers += [self._groups, self._silent]
        if self.launch.restarts:
            readers.append(self._restarted)
        if readers or self._readers:
            self._watcher = Watcher(self._made.path, [*readers, *self._readers])
        if self._said:
            self._screen.message(self._said)

    def show(self) -> None:
        """Show the progress of the job, and report groups that are slow, silent or back.

        Called on the thread of the screen.
        """
        self._tell_news()
        self._tell_slow()
        self._screen.show_job(self._line.text)

    def close(self) -> None:
        """Close the files at the end of the launch."""
        if self._watcher is not None:
            self._watcher.close()
            self._tell_news()
        if self._file is not None:
            self._file.close()
        if self._made is not None:
            self._made.close()

    def _tell_news(self) -> None:
        for reader in (self._restarted, self._silent):
            while reader.news:
                self._note(reader.news.popleft())

    def _tell_slow(self) -> None:
        while self._groups.news:
            text, event = self._groups.news.popleft()
            self._note(text)
            if self._log is not None:
                self._log.note(event)

    def _note(self, text: str) -> None:
        if not self.launch.settings.quiet:
            self._screen.message(text)


def _groups(launch: Launch, groups: LaunchedGroups, lives: Lives) -> list[GroupStatus]:
    """Return the status of each group that was started so far."""
    return [
        GroupStatus(
            number=group.number,
            size=group.size,
            running=child.status is None,
            restarts=lives.of[group.index],
            status=child.status,
        )
        for group, child in zip(launch.groups, list(groups.children), strict=False)
    ]


def _reports(log: RunLog) -> list[Report]:
    return [Report.of(event) for event in list(log.latest.values())[:_MOST_REPORTS]]
