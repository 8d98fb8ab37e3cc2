"""Starts servers and one mpirun for each group, watches them, and leaves no process behind."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import ExitStack
from functools import partial
from itertools import chain, groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType

from hybridps.cli.run.groups.ending import Told, how_ended
from hybridps.cli.run.groups.environment import environment_of_groups
from hybridps.cli.run.groups.lives import Lives
from hybridps.cli.run.groups.starting import Starting, announced
from hybridps.cli.run.mpirun import Mpirun, find_mpirun
from hybridps.cli.run.output import Screen
from hybridps.cli.run.places import SSH
from hybridps.cli.run.plan import GroupLaunch, Launch, ServerLaunch
from hybridps.cli.run.processes import Child, Processes
from hybridps.cli.run.run_log import RunLog
from hybridps.cli.told import AGAIN, Groups, changes, groups_in
from hybridps.config import PREFIX, SECRETS
from hybridps.errors import FAILED, MISUSED, ServerError
from hybridps.events import check_run_folder
from hybridps.processes import SAYS, START_SECONDS, child_environment, without_rank_marks
from hybridps.ps.keys import Credentials, make_tenant
from hybridps.resuming import Resume

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run(launch: Launch) -> int:
    """Start the job, wait for its end, and return the exit status. Raises HybridPSError before anything is started."""
    mpirun = find_mpirun()
    check_run_folder(launch.settings.run_folder)
    status = Launcher(launch, mpirun).run()
    if launch.settings.run_folder is not None and not launch.settings.quiet:
        from hybridps.cli.summary import print_summary

        print_summary(launch.settings.run_folder, only_if_events=True)
    return status


class Launcher:
    """Runs one `Launch`."""

    def __init__(self, launch: Launch, mpirun: Mpirun) -> None:
        self._launch = launch
        self._mpirun = mpirun
        names = [server.name for server in launch.servers] + [_name(group) for group in launch.groups]
        self._screen = Screen(sys.stdout, sys.stderr, names)
        self._processes = Processes(self._screen, self._ended)
        self._log = RunLog(launch.settings)
        self._lives = Lives(len(launch.groups), launch.restarts, launch.begins_together)
        self._starting: Starting | None = None
        """From the start of the groups on, if their ranks can tell that they run."""
        self._was_late = False
        """Whether a group was found not to have started in time."""
        self._servers: list[list[Child]] = []
        """The parents, if there are racks, and last the servers that the groups meet at."""
        self._groups: list[Child] = []
        """The latest life of each."""
        self._shared: dict[str, str] = {}
        """The environment of all groups."""
        self._meeting_folder = ""
        """Where groups of this host that gossip find each other."""
        self._addresses: dict[str, str] = {}
        """Of the servers that have said theirs, by their names."""
        self._keys: str | None = None
        self._credentials: str | None = None
        self._left = False
        """Whether all groups have left, as they were told."""
        self._told = Told()
        self._others = Groups()
        """The groups of the job, as its first server has said last."""
        self._signals: list[int] = []
        self._failed = 0
        self._ends_all = False
        self._stopping = False

    def run(self) -> int:
        by_nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN  # it told the job to survive the terminal
        heard = [number for number in _SIGNALS if not (by_nohup and number == signal.SIGHUP)]
        before = {number: signal.signal(number, self._on_signal) for number in heard}
        stay = ExitStack()
        try:
            with ExitStack() as stack:
                if self._launch.makes_keys:
                    self._make_keys(Path(self._folder(stack)))
                # The servers have read their keys when they print their addresses.
                self._start_servers()
            if not self._signals:
                self._start_groups(stay)
            self._watch_groups()
            self._await_others()
            self._give_notice()
        finally:
            self._stop()
            stay.close()
            for number, handler in before.items():
                signal.signal(number, handler)
        status = 128 + self._signals[0] if self._signals and not self._left else self._failed
        if said := self._log.ended(status):
            self._screen.message(said)
        return status

    def _folder(self, stack: ExitStack, place: str | None = None) -> str:
        """A new folder (default: in the system's temporary one), which goes with the stack or with the launcher."""
        found = stack.enter_context(TemporaryDirectory(prefix="hybridps-", dir=place, ignore_cleanup_errors=True))
        self._processes.keep(found)
        return found

    def _watch_groups(self) -> None:
        """Until all groups have ended for good: those that died are started again, if they may be."""
        self._processes.until(self._is_over)
        while self._lives.due and not (self._signals or self._ends_all):
            self._start_again()
            self._processes.until(self._is_over)

    def _is_over(self) -> bool:
        """Whether there is nothing to wait for, but perhaps something to do.

        A group that has not started in time ends the launch; one that was started again only itself.
        """
        if self._signals or self._ends_all or self._lives.due or not _running(self._groups):
            return True
        late = self._starting.late() if self._starting is not None else []
        missing = [group for group in late if self._groups[group].status is None]
        if self._starting is None or not missing:
            return False
        if not self._was_late:  # what the ranks have printed is read first: this process may have been stopped
            self._was_late = True
            return False
        self._screen.message(self._starting.describe(missing[0]))
        if self._lives.of[missing[0]]:
            self._was_late = False
            self._processes.stop([self._groups[missing[0]]], lambda: bool(self._signals))
            return False
        self._failed = self._failed or FAILED
        return True

    def _make_keys(self, folder: Path) -> None:
        """Make keys for this launch: servers read theirs from the folder, groups get theirs in the environment."""
        theirs = make_tenant(folder, "run")
        self._keys, self._credentials = str(folder), Credentials.load(theirs).text()

    def _start_servers(self) -> None:
        """Start the servers; those of racks last, as they need the addresses of their parents."""
        for _, servers in groupby(self._launch.servers, key=lambda server: server.rack is None):
            parents = self._last_addresses()
            self._servers.append([])
            for server in servers:
                self._servers[-1].append(self._start_server(server, parents))
            self._await_servers()
            if self._signals:
                return

    def _last_addresses(self) -> list[str]:
        return [self._addresses[server.name] for server in self._servers[-1]] if self._servers else []

    def _start_server(self, server: ServerLaunch, parents: list[str]) -> Child:
        def hear(line: str) -> bool:
            if line.startswith(SAYS):
                self._addresses[server.name] = line.removeprefix(SAYS)
            if line == AGAIN:
                self._told.again(next(child for child in self._servers[-1] if child.name == server.name))
            told = groups_in(line)
            if told is not None and self._servers[-1][0].name == server.name:
                self._note_groups(told[1])
            return told is not None or line == AGAIN

        command = [sys.executable, "-m", "hybridps", "serve", "--bind", self._launch.bind]
        command += ["--insecure"] if self._launch.insecure else []
        listens = self._launch.settings.backend == "hybridps"
        command += ["--told-ends"] if listens else []
        settings = self._launch.server_settings(server, parents, self._keys, self._credentials)
        environ = child_environment({**without_rank_marks(os.environ), **self._launch.environment.servers}, settings)
        command += server.options
        return self._processes.start(
            server.name, command, environ, death_signal=signal.SIGKILL, listens=listens, on_line=hear
        )

    def _note_groups(self, now: Groups) -> None:
        """The first server says which groups have joined the job."""
        for line in changes(self._others.joined, now):
            self._screen.message(line)
        if now.joined != self._others.joined:
            self._log.joined(sorted(now.joined), now.groups, now.workers)
        self._others = now

    def _await_others(self) -> None:
        """Wait until the groups that have joined the job have left: they need the servers."""
        servers = _running(self._servers[-1]) if self._servers else []
        if not servers or not self._others.there or self._signals or self._ends_all:
            return
        names = ", ".join(map(str, sorted(self._others.there)))
        self._screen.message(f"the servers stay for groups that have joined the job: {names}")
        self._processes.until(lambda: bool(self._signals) or not self._others.there or _running(servers) != servers)

    def _give_notice(self) -> None:
        """At the first SIGTERM, tell the groups to leave, if they get notice, and wait as long as was said."""
        seconds, groups = self._launch.settings.notice_seconds, _running(self._groups)
        if seconds is None or self._signals != [signal.SIGTERM] or not groups or self._starting is None:
            return
        self._screen.message(f"SIGTERM: {len(groups)} groups have {seconds:g} s to leave")
        for child in groups:  # once: while Python ends, the signal would kill a rank
            if self._starting.has_started(self._groups.index(child)):
                child.process.send_signal(signal.SIGUSR1)
        self._processes.until(lambda: len(self._signals) > 1 or not _running(groups), seconds)
        self._left = not any(child.status or child.status is None for child in groups)

    def _await_servers(self) -> None:
        """Wait until the servers have printed their addresses. Raises ServerError if one does not."""
        started = [*chain(*self._servers)]

        def silent() -> list[Child]:
            return [server for server in started if server.name not in self._addresses]

        in_time = self._processes.until(
            lambda: bool(self._signals) or not silent() or _running(started) != started, START_SECONDS
        )
        if self._signals or not silent():
            return
        self._stopping = True
        first = silent()[0]
        what = f"ended with {how_ended(first)}" if in_time else f"printed no address within {START_SECONDS:g} seconds"
        raise ServerError(f"{first.name} {what}, so no group was started; see its output above")

    def _start_groups(self, stack: ExitStack) -> None:
        """Start one mpirun for each group. Folders in which mpirun keeps its files, and gossiping groups meet, go with
        the stack."""
        self._meeting_folder = folder = self._folder(stack)
        self._shared = environment_of_groups(self._launch, folder, lambda place: self._folder(stack, place))
        launch = self._launch
        count = sum(group.size for group in launch.groups)
        self._log.launched(count, len(launch.groups), len(launch.servers), launch.command)
        if announced(launch.command):
            self._starting = Starting(launch.groups, launch.settings.start_seconds)
        if self._launch.settings.ticket is not None:
            names = ", ".join(str(group.number) for group in self._launch.groups)
            self._screen.message(f"joining job {self._launch.settings.job!r} as group {names}")
        for group in self._launch.groups:
            self._groups.append(self._start_group(group))

    def _start_again(self) -> None:
        """Start the groups that are due, where the job is by now; if no weights are left there, at its beginning."""
        if self._lives.together:
            self._stop_groups()
        if self._lives.together or not self._has_weights(self._groups):
            self._log.begin_anew()
        for group in self._lives.begin():
            if self._signals:
                return
            self._log.restarted(group, self._lives.of[group], self._groups[group].status or 0)
            self._groups[group] = self._start_group(self._launch.groups[group])
            if self._starting is not None:
                self._starting.begin(group)

    def _stop_groups(self) -> None:
        """Stop all groups, so that they begin together, in a job that the servers do not know."""
        self._stopping = True
        self._processes.stop(_running(self._groups), lambda: bool(self._signals))
        self._stopping = False
        for group in self._launch.groups:
            self._tell_servers(group.index)
        self._launch = self._launch.as_another_job(max(self._lives.of) + 1)

    def _start_group(self, group: GroupLaunch) -> Child:
        life = self._lives.of[group.index]
        resume = Resume(life, self._log.epoch, self._log.step) if life else Resume()
        if self._launch.settings.ticket is not None:  # it takes the job's weights, as if it were started again
            epoch, step = self._launch.done
            resume = Resume(life + 1, max(epoch, self._log.epoch), max(step, self._log.step))
        settings = self._launch.group_settings(
            group, self._last_addresses(), self._credentials, self._meeting_folder, resume
        )
        environ = child_environment(self._shared, settings)
        given = self._launch.environment.workers
        exported = {
            name: value
            for name, value in environ.items()
            if name.startswith(PREFIX) or name in ("OMP_NUM_THREADS", "PYTHONPATH", *given)
        }
        command = self._mpirun.command(
            group.size,
            group.hosts,
            exported,
            announced(self._launch.command) or self._launch.command,
            at_once=self._screen.shows_bars,
            over_ssh=self._launch.launcher == SSH,
            secret=(*SECRETS, *given),
        )
        hear = partial(self._hear, group.index)
        return self._processes.start(
            _name(group), command, environ, death_signal=self._mpirun.death_signal, on_line=hear
        )

    def _hear(self, group: int, line: str) -> bool:
        """A worker has printed a line; whether that is not shown."""
        if self._starting is not None and (before := self._starting.hear(group, line)) is not None:
            if before.strip():
                self._screen.line(_name(self._launch.groups[group]), before)
            return True
        sizes = zip(self._groups, self._launch.groups, strict=False)
        known = self._log.epoch, self._log.step
        heard = self._log.hear(group, line, sum(launch.size for child, launch in sizes if child.status is None))
        if known != (self._log.epoch, self._log.step):
            self._told.done(self._launch, self._servers, self._credentials, self._log)
        if heard.message:
            self._screen.message(heard.message)
        return heard.hide

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signals.append(number)

    def _ended(self, child: Child) -> None:
        """A child has ended: report it if it failed, and tell the servers if it is a group."""
        if self._stopping or self._signals:
            return
        if child not in self._groups:
            self._screen.message(
                f"{child.name} ended with {how_ended(child)}; groups that need it end at their deadline"
            )
            return
        group, restart = self._groups.index(child), ""
        others = [other for other in self._groups if other is not child]
        # A group that gossips would find nobody where the others have come to their ends.
        if child.status and (self._has_weights(others) or all(other.status for other in others)):
            restart = self._lives.failed(group, child.status)
        if child.status:
            self._screen.message(f"{child.name} ended with {how_ended(child)}{self._what_follows(child, restart)}")
        self._tell_servers(group, returns=bool(restart) and not self._lives.together)

    def _has_weights(self, others: list[Child]) -> bool:
        """Whether somebody has the weights of the job for a group that is started again: servers, or other groups."""
        return bool(self._servers or self._launch.settings.servers or _running(others))

    def _what_follows(self, child: Child, restart: str) -> str:
        """What the launcher says of a group that has failed."""
        if restart:
            return f"; {restart}"
        self._failed = self._failed or child.status or 0
        # at MXNet's servers the others could not go on
        self._ends_all = child.status == MISUSED or self._launch.settings.backend == "mxnet"
        if not any(other is not child for other in _running(self._groups)):
            return ""
        return "; stopping the others" if self._ends_all else "; the other groups go on"

    def _tell_servers(self, group: int, returns: bool = False) -> None:
        life = self._lives.of[group]
        if self._launch.settings.ticket is not None:
            from hybridps.cli.run.joining import tell_end

            tell_end(self._launch, group, life + 1, returns)
            return
        self._told.end(self._launch, self._servers, self._credentials, group, life, returns)

    def _stop(self) -> None:
        if self._signals and not self._left:
            name, servers = signal.Signals(self._signals[0]).name, _running([*chain(*self._servers)])
            self._screen.message(f"{name}: stopping {len(_running(self._groups))} groups and {len(servers)} servers")
        self._stopping = True
        ended = [group for group, child in enumerate(self._groups) if child.status is None]
        for children in (self._groups, *reversed(self._servers)):
            self._processes.stop(children, lambda: len(self._signals) > 1)
        for group in ended if self._launch.settings.ticket is not None else ():
            self._tell_servers(group)
        self._processes.close()


def _name(group: GroupLaunch) -> str:
    return f"group {group.number}"


def _running(children: list[Child]) -> list[Child]:
    return [child for child in children if child.status is None]
