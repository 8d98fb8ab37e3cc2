"""Runs a launch: starts the servers and one mpirun for each group, watches them, and leaves no process behind."""

from __future__ import annotations

import signal
import sys
from contextlib import ExitStack

from hybridps.cli.run.children.child import Child, running
from hybridps.cli.run.children.log_files import LogFiles, LoggedScreen
from hybridps.cli.run.children.output import Screen
from hybridps.cli.run.children.processes import Processes
from hybridps.cli.run.groups.ending import how_ended
from hybridps.cli.run.groups.launched import LaunchedGroups, group_name, worker_names, worker_numbers
from hybridps.cli.run.groups.lives import Lives
from hybridps.cli.run.live import LaunchLive
from hybridps.cli.run.mpirun import Mpirun, find_mpirun
from hybridps.cli.run.plan import Launch
from hybridps.cli.run.plan.ranks import GROUP, NONE, WORKER
from hybridps.cli.run.run_log import RunLog
from hybridps.cli.run.said import Why, describe
from hybridps.cli.run.servers import LaunchedServers
from hybridps.cli.run.signals import Signals
from hybridps.errors import FAILED, MISUSED
from hybridps.events import Noted, check_run_folder
from hybridps.live.reading import check_unused
from hybridps.progress import parse_restarts
from hybridps.quantities import counted
from hybridps.resuming import Resume
from hybridps.tracing.recorder import check_trace


def run(launch: Launch, why: Why | None = None) -> int:
    """Run a job from start to end, and return the exit status. Raises HybridPSError before anything is started.

    With `why`, the first line that is printed says what was chosen, and why.
    """
    mpirun, folder = find_mpirun(), launch.settings.run_folder
    has_earlier = check_run_folder(folder)
    check_unused(folder)
    check_trace(launch.settings)
    with ExitStack() as stack:
        screen = _screen(launch, stack)
        launcher = Launcher(launch, mpirun, screen)
        if why is not None and not launch.settings.quiet:
            screen.message(describe(launch, mpirun, why))
            if has_earlier:
                screen.message(f"{folder} has an earlier launch: its events are kept, and the report shows this one")
        status = launcher.run()
    if folder is not None and not launch.settings.quiet:
        from hybridps.cli.summary import print_summary

        print_summary(folder, only_if_events=True)
    return status


def _screen(launch: Launch, stack: ExitStack) -> Screen:
    """Return the screen of a launch. Its files are closed with the stack. Raises ConfigError."""
    names = [server.name for server in launch.servers]
    prefixes: dict[str, str] = {}
    for group in launch.groups:
        for name in (group_name(group), *worker_names(launch, group).values()):
            names.append(name)
            prefixes[name] = {WORKER: name, GROUP: group_name(group), NONE: ""}[launch.ranks.prefix]
    if launch.ranks.log_folder is None:
        return Screen(sys.stdout, sys.stderr, names, prefixes)
    files = LogFiles(launch.ranks.log_folder)
    stack.callback(files.close)
    return LoggedScreen(sys.stdout, sys.stderr, names, prefixes, files)


class Launcher:
    """Runs one `Launch`."""

    def __init__(self, launch: Launch, mpirun: Mpirun, screen: Screen) -> None:
        self._screen = screen
        self._live = LaunchLive(launch, screen)
        self._launch = launch = self._live.launch
        self._signals = Signals()
        self._processes = Processes(self._screen, self._ended)
        self._log = RunLog(launch.settings)
        self._lives = Lives(len(launch.groups), launch.restarts, launch.begins_together)
        self._servers = LaunchedServers(launch, self._processes, self._screen, self._log, self._signals)
        self._groups = LaunchedGroups(launch, mpirun, self._processes, self._screen, self._hear)
        self._left = False
        """Whether all groups have left after a notice."""
        self._failed = 0
        self._ends_all = False
        self._stopping = False

    def run(self) -> int:
        with self._signals:
            stay = ExitStack()
            if self._live.entry is not None:
                self._processes.remove_if_killed(self._live.entry)
                self._processes.remove_if_killed(self._live.entry.parent, if_empty=True)
            try:
                self._live.begin(self._servers, self._groups, self._lives, self._log, self._signals)
                self._processes.on_step = self._live.show
                self._servers.start()
                if not self._signals:
                    self._start_groups(stay)
                self._watch_groups()
                if not self._ends_all:
                    self._servers.await_others()
                self._give_notice()
            finally:
                self._stop()
                self._live.close()
                stay.close()
        status = 128 + self._signals.heard[0] if self._signals and not self._left else self._failed
        for said in self._log.ended(status):
            self._screen.message(said)
        lost = [child.name for child in self._groups.children if child.status]
        if status and not self._signals and 0 < len(lost) < len(self._groups.children) and not self._ends_all:
            self._screen.message(f"the job ends with status {status}, because {', '.join(lost)} failed")
        return status

    def _start_groups(self, stack: ExitStack) -> None:
        """Start all groups. The stack removes their folders."""
        launch = self._launch
        self._groups.prepare(stack)
        count = sum(group.size for group in launch.groups)
        numbers = [number for group in launch.groups if launch.sizes for number in worker_numbers(launch, group)]
        self._log.launched(count, len(launch.groups), len(launch.servers), launch.command, numbers)
        if launch.settings.ticket is not None:
            names = ", ".join(str(group.number) for group in launch.groups)
            self._screen.message(f"joining job {launch.settings.job!r} as group {names}")
        for group in launch.groups:
            self._start_group(group.index)

    def _start_group(self, group: int, rejoins: bool = False) -> None:
        life = self._lives.of[group]
        resume = Resume(life, self._log.epoch, self._log.step) if life else Resume()
        if self._launch.settings.ticket is not None:  # it takes the job's weights over, like a restarted group
            epoch, step = self._launch.done
            resume = Resume(life + 1, max(epoch, self._log.epoch), max(step, self._log.step))
        self._groups.start(self._launch, group, self._servers, resume, rejoins)

    def _watch_groups(self) -> None:
        """Wait until all groups have ended for good. Groups that died are restarted if they may be."""
        self._processes.until(self._is_over)
        while self._lives.due and not (self._signals or self._ends_all):
            self._start_again()
            self._processes.until(self._is_over)

    def _is_over(self) -> bool:
        """Return whether to stop waiting: all groups have ended, or there is something to do.

        A group that has not started in time ends the launch; if it was restarted, only the group is stopped.
        """
        if self._signals or self._ends_all or self._lives.due or not self._groups.running:
            return True
        late, starting = self._groups.late(), self._groups.starting
        if late is None or starting is None:
            return False
        self._screen.message(starting.describe(late))
        if self._lives.of[late]:
            self._groups.stop_late(late, lambda: bool(self._signals))
            return False
        self._failed = self._failed or FAILED
        return True

    def _start_again(self) -> None:
        """Restart the groups that are due where the job is by now, or at its beginning if nothing holds the weights."""
        stopped: list[Child] = []
        if self._lives.together:
            stopped = self._groups.running
            self._stop_groups()
            self._failed = 0
        anew = self._lives.together or not self._has_weights(self._groups.children)
        if anew:
            self._log.begin_anew()
        for group in self._lives.begin():
            if self._signals:
                return
            number, child = self._launch.groups[group].number, self._groups.children[group]
            self._log.restarted(number, self._lives.of[group], 0 if child in stopped else child.status or 0, anew)
            self._start_group(group, rejoins=self._lives.in_step and not anew)

    def _stop_groups(self) -> None:
        """Stop all groups, so that they start together, in a job with a name that is new to the servers."""
        self._stopping = True
        self._processes.stop(self._groups.running, lambda: bool(self._signals))
        self._stopping = False
        for group in self._launch.groups:
            self._tell_servers(group.index)
        self._launch = self._launch.as_another_job(max(self._lives.of) + 1)

    def _give_notice(self) -> None:
        """At the first SIGTERM, tell the groups to leave, if notice is configured, and wait for the configured time."""
        seconds, groups, starting = self._launch.settings.notice_seconds, self._groups.running, self._groups.starting
        if seconds is None or self._signals.heard != [signal.SIGTERM] or not groups or starting is None:
            return
        self._screen.message(f"SIGTERM: {counted(len(groups), 'group')} must leave within {seconds:g} s")
        for child in groups:  # only once: while Python ends, the signal would kill a rank
            if starting.has_started(self._groups.children.index(child)):
                child.process.send_signal(signal.SIGUSR1)
        self._processes.until(lambda: self._signals.are_several or not running(groups), seconds)
        self._left = not any(child.status or child.status is None for child in groups)

    def _hear(self, group: int, line: str) -> bool:
        """Handle a line that a worker of a group has printed; `group`: its number. Return whether to hide it."""
        how = parse_restarts(line)
        if how is not None:
            self._lives.learn(how)
            return True
        known = self._log.epoch, self._log.step
        heard = self._log.hear(group, line, self._groups.workers_running)
        if known != (self._log.epoch, self._log.step):
            self._servers.tell_progress(self._launch)
        for message in heard.messages:
            self._screen.message(message)
        return heard.hide

    def _ended(self, child: Child) -> None:
        """Handle the end of a child: report it if it failed, and tell the servers if it is a group."""
        if self._stopping or self._signals:
            return
        if child not in self._groups.children:
            settings = self._launch.settings
            folder = settings.snapshots
            when = f" after {settings.lost_seconds:g} s" if settings.backend == "hybridps" else ""
            then = "" if folder is None else f"; the same command starts again from the snapshots in {folder}"
            self._screen.message(f"{child.name} ended with {how_ended(child)}; groups that need it end{when}{then}")
            return
        group, restart = self._groups.children.index(child), ""
        others = [other for other in self._groups.children if other is not child]
        # A group that gossips would find no partner if the others have finished.
        has_weights = self._has_weights(others) or all(other.status for other in others)
        if child.status and has_weights and not self._servers.gone:
            restart = self._lives.failed(group, child.status, others_train=bool(running(others)))
        if child.status:
            said = f"{child.name} ended with {how_ended(child)}{self._what_follows(child, restart)}"
            self._screen.message(said)
            if not restart:
                self._log.note(Noted(said))
        if not (restart and self._lives.together):  # else the others would do steps without it
            self._tell_servers(group, returns=bool(restart))

    def _has_weights(self, others: list[Child]) -> bool:
        """Return whether servers or other groups hold the weights of the job for a restarted group."""
        return bool(self._servers.tiers or self._launch.settings.servers or running(others))

    def _what_follows(self, child: Child, restart: str) -> str:
        """Return what the launcher says about the consequences of a group's failure, and note them."""
        if restart:
            return f"; {restart}"
        self._failed = self._failed or child.status or 0
        gone = self._servers.gone if self._launch.restarts else []
        why_not = f"; not started again, because {', '.join(gone)} has ended" if gone else ""
        # with MXNet's servers, the other groups could not continue
        self._ends_all = child.status == MISUSED or self._launch.settings.backend == "mxnet" or self._never_ran(child)
        if not any(other is not child for other in self._groups.running):
            return why_not
        return why_not + ("; stopping the others" if self._ends_all else "; the other groups go on")

    def _never_ran(self, child: Child) -> bool:
        """Return whether not all ranks of a group were started, for example because a host cannot be reached."""
        group, starting = self._groups.children.index(child), self._groups.starting
        return starting is not None and not self._lives.of[group] and not starting.has_started(group)

    def _tell_servers(self, group: int, returns: bool = False) -> None:
        life = self._lives.of[group]
        if self._launch.settings.ticket is not None:
            from hybridps.cli.run.joining import tell_end

            tell_end(self._launch, group, life + 1, returns)
            return
        self._servers.tell_end(self._launch, group, life, returns)

    def _stop(self) -> None:
        groups = self._groups.children
        if self._signals and not self._left:
            name, servers = self._signals.name, running(self._servers.children)
            left = len(running(groups))
            self._screen.message(f"{name}: stopping {counted(left, 'group')} and {counted(len(servers), 'server')}")
        self._stopping = True
        ended = [group for group, child in enumerate(groups) if child.status is None]
        for children in (groups, *reversed(self._servers.tiers)):
            self._processes.stop(children, lambda: self._signals.are_several)
        for group in ended if self._launch.settings.ticket is not None else ():
            self._tell_servers(group)
        self._processes.close()
