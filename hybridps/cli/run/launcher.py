"""Starts servers and one mpirun for each group, watches them, and leaves no process behind."""

from __future__ import annotations

import os
import re
import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType

from hybridps.cli.run.mpirun import (
    Mpirun,
    find_mpirun,
    rank_environment,
    root_environment,
    session_environment,
    without_rank_marks,
)
from hybridps.cli.run.output import Screen
from hybridps.cli.run.plan import GroupLaunch, Launch, LaunchOptions, ServerLaunch, child_environment, make_launch
from hybridps.cli.run.processes import Child, Processes
from hybridps.config import PREFIX
from hybridps.errors import MISUSED, ServerError
from hybridps.events import check_run_folder
from hybridps.ps.keys import Credentials, make_tenant
from hybridps.ps.process import START_SECONDS

STOP_SECONDS = 5.0
_SERVING = re.compile(r"hybridps: serving at (\S+)")
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _by_nohup(number: int) -> bool:
    """Whether this is the signal of a closing terminal, and nohup told the job to survive it."""
    return number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN


def run(options: LaunchOptions) -> int:
    """Start the job, wait for its end, and return the exit status. Raises HybridPSError before anything is started."""
    launch = make_launch(options)
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
        servers = [server.name for server in launch.servers]
        self._screen = Screen(sys.stdout, sys.stderr, [*servers, *(_name(group) for group in launch.groups)])
        self._processes = Processes(self._screen, self._ended)
        self._servers: list[Child] = []
        self._parents: list[Child] = []
        """The servers that belong to no rack, if there are racks."""
        self._groups: list[Child] = []
        self._addresses: dict[str, str] = {}
        self._keys: str | None = None
        self._credentials: str | None = None
        self._signals: list[int] = []
        self._failed: int | None = None
        self._ends_all = False
        self._stopping = False

    def run(self) -> int:
        before = {number: signal.signal(number, self._on_signal) for number in _SIGNALS if not _by_nohup(number)}
        stay = ExitStack()
        try:
            with ExitStack() as stack:
                if self._launch.makes_keys:
                    self._make_keys(Path(stack.enter_context(TemporaryDirectory(prefix="hybridps-"))))
                # The servers have read their keys when they print their addresses.
                self._start_servers()
            self._start_groups(stay.enter_context(TemporaryDirectory(prefix="hybridps-", ignore_cleanup_errors=True)))
            self._processes.until(lambda: bool(self._signals) or self._ends_all or not _running(self._groups))
        finally:
            self._stop()
            stay.close()
            for number, handler in before.items():
                signal.signal(number, handler)
        if self._signals:
            return 128 + self._signals[0]
        return self._failed or 0

    def _make_keys(self, folder: Path) -> None:
        """Make keys for this launch: servers read theirs from the folder, groups get theirs in the environment."""
        theirs = make_tenant(folder, "run")
        self._keys, self._credentials = str(folder), Credentials.load(theirs).text()

    def _start_servers(self) -> None:
        """Start the servers; those of racks last, as they need the addresses of their parents."""
        in_racks = [server for server in self._launch.servers if server.rack is not None]
        for server in self._launch.servers:
            if server.rack is None:
                self._start_server(server)
        self._await_servers()
        if in_racks and not self._signals:
            self._parents = [*self._servers]
            for server in in_racks:
                self._start_server(server)
            self._await_servers()

    def _start_server(self, server: ServerLaunch) -> None:
        launch, name = self._launch, server.name
        command = [sys.executable, "-m", "hybridps", "serve", "--bind", launch.bind]
        command += ["--insecure"] if launch.insecure else []
        parents = [self._addresses[parent.name] for parent in self._parents]
        settings = launch.server_settings(server, parents, self._keys, self._credentials)
        self._servers.append(
            self._processes.start(
                name,
                [*command, *server.options],
                child_environment(without_rank_marks(os.environ), settings),
                death_signal=signal.SIGKILL,
                on_line=lambda line: self._on_server_line(name, line),
            )
        )

    def _await_servers(self) -> None:
        """Wait until all servers have printed their addresses. Raises ServerError if one does not."""

        def settled() -> bool:
            there = len(self._addresses) == len(self._servers)
            return there or bool(self._signals) or len(_running(self._servers)) < len(self._servers)

        in_time = self._processes.until(settled, START_SECONDS)
        if self._signals or len(self._addresses) == len(self._servers):
            return
        self._stopping = True
        silent = next(server for server in self._servers if server.name not in self._addresses)
        what = f"ended with {_status(silent)}" if in_time else f"printed no address within {START_SECONDS:g} seconds"
        raise ServerError(f"{silent.name} {what}, so no group was started; see its output above")

    def _on_server_line(self, name: str, line: str) -> None:
        if match := _SERVING.match(line):
            self._addresses[name] = match[1]

    def _start_groups(self, folder: str) -> None:
        """Start one mpirun for each group. `folder`: where mpirun keeps its own files until the end."""
        if self._signals:
            return
        addresses = [self._addresses[server.name] for server in self._servers if server not in self._parents]
        shared = without_rank_marks(os.environ)
        workers = self._launch.workers_on_a_host
        cores = len(os.sched_getaffinity(0))
        shared |= rank_environment(shared, cores, workers, workers + len(self._servers)) | root_environment()
        shared |= session_environment(shared, folder)
        for group in self._launch.groups:
            self._groups.append(self._start_group(group, shared, addresses))

    def _start_group(self, group: GroupLaunch, shared: dict[str, str], addresses: list[str]) -> Child:
        environ = child_environment(shared, self._launch.group_settings(group, addresses, self._credentials))
        exported = {
            name: value
            for name, value in environ.items()
            if name.startswith(PREFIX) or name in ("OMP_NUM_THREADS", "PYTHONPATH")
        }
        command = self._mpirun.command(
            group.size, group.hosts, exported, self._launch.command, at_once=self._screen.shows_bars
        )
        return self._processes.start(_name(group), command, environ, death_signal=self._mpirun.death_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signals.append(number)

    def _ended(self, child: Child) -> None:
        """A child has ended: report it if it failed."""
        if self._stopping or self._signals:
            return
        if child in self._servers:
            self._screen.message(f"{child.name} ended with {_status(child)}; groups that need it end at their deadline")
        elif child.status:
            self._failed = self._failed or child.status
            self._ends_all = child.status == MISUSED or not self._launch.can_lose_a_group
            others = ""
            if any(other is not child for other in _running(self._groups)):
                others = "; stopping the others" if self._ends_all else "; the other groups go on"
            self._screen.message(f"{child.name} ended with {_status(child)}{others}")

    def _stop(self) -> None:
        running = _running(self._groups)
        if self._signals:
            name = signal.Signals(self._signals[0]).name
            self._screen.message(f"{name}: stopping {len(running)} groups and {len(_running(self._servers))} servers")
        self._stopping = True
        self._processes.stop(running, STOP_SECONDS, self._hurry)
        below = [server for server in self._servers if server not in self._parents]
        for servers in (below, self._parents):
            self._processes.stop(_running(servers), STOP_SECONDS, self._hurry)
        self._processes.close()

    def _hurry(self) -> bool:
        return len(self._signals) > 1


def _name(group: GroupLaunch) -> str:
    return f"group {group.index}"


def _running(children: list[Child]) -> list[Child]:
    return [child for child in children if child.status is None]


def _status(child: Child) -> str:
    """The exit status in words, with the rank that ended first if mpirun named it."""
    status = child.status or 0
    text = f"exit status {status}"
    rank = child.first_rank
    who = "" if rank is None else f"rank {rank} "
    if status > 128 and status - 128 in signal.valid_signals():
        return f"{text} ({who}killed by signal {status - 128})"
    return f"{text} ({who}ended first)" if rank is not None else text
