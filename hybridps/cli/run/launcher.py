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

from hybridps.cli.run.hosts import is_here
from hybridps.cli.run.mpirun import Mpirun, find_mpirun, rank_environment, root_environment, session_environment
from hybridps.cli.run.output import Screen
from hybridps.cli.run.places import SLURM, SSH
from hybridps.cli.run.plan import GroupLaunch, Launch, ServerLaunch
from hybridps.cli.run.processes import Child, Processes
from hybridps.cli.run.run_log import RunLog
from hybridps.cli.run.starting import Starting, announced
from hybridps.config import PREFIX, SECRETS
from hybridps.errors import FAILED, MISUSED, HybridPSError, ServerError
from hybridps.events import check_run_folder
from hybridps.processes import SAYS, START_SECONDS, child_environment, without_rank_marks
from hybridps.ps.keys import Credentials, make_tenant
from hybridps.racks import place_in_rack

_SHARED_MEMORY = "/dev/shm"
_ALLOCATIONS = {"SLURM_JOB_ID", "PBS_NODEFILE", "PBS_JOBID", "LSB_HOSTS", "LSB_DJOB_HOSTFILE", "JOB_ID"}
"""Variables of a batch system that mpirun asks for its hosts."""

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
        self._starting: Starting | None = None
        """From the start of the groups on, if their ranks can tell that they run."""
        self._was_late = False
        """Whether a group was found not to have started in time."""
        self._servers: list[list[Child]] = []
        """The parents, if there are racks, and last the servers that the groups meet at."""
        self._groups: list[Child] = []
        self._addresses: dict[str, str] = {}
        """Of the servers that have said theirs, by their names."""
        self._keys: str | None = None
        self._credentials: str | None = None
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
            self._processes.until(self._is_over)
        finally:
            self._stop()
            stay.close()
            for number, handler in before.items():
                signal.signal(number, handler)
        status = 128 + self._signals[0] if self._signals else self._failed
        if said := self._log.ended(status):
            self._screen.message(said)
        return status

    def _folder(self, stack: ExitStack, place: str | None = None) -> str:
        """A new folder (default: in the system's temporary one), which goes with the stack or with the launcher."""
        found = stack.enter_context(TemporaryDirectory(prefix="hybridps-", dir=place, ignore_cleanup_errors=True))
        self._processes.keep(found)
        return found

    def _is_over(self) -> bool:
        """Whether nothing is left to wait for. A group that has not started in time ends the launch."""
        if self._signals or self._ends_all or not _running(self._groups):
            return True
        late = self._starting.late() if self._starting is not None else []
        missing = [group for group in late if self._groups[group].status is None]
        if self._starting is None or not missing:
            return False
        if not self._was_late:  # what the ranks have printed is read first: this process may have been stopped
            self._was_late = True
            return False
        self._failed = self._failed or FAILED
        self._screen.message(self._starting.describe(missing[0]))
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
            return False

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
        what = f"ended with {_status(first)}" if in_time else f"printed no address within {START_SECONDS:g} seconds"
        raise ServerError(f"{first.name} {what}, so no group was started; see its output above")

    def _start_groups(self, stack: ExitStack) -> None:
        """Start one mpirun for each group. Folders in which mpirun keeps its files, and gossiping groups meet, go with
        the stack."""
        folder = self._folder(stack)
        hosts = [host for group in self._launch.groups for host in group.hosts]
        # Other hosts would not have this folder, also those that mpirun finds by itself.
        here = all(is_here(host.name) for host in hosts) if hosts else _ALLOCATIONS.isdisjoint(os.environ)
        shares = here and os.access(_SHARED_MEMORY, os.W_OK)
        shared = {**without_rank_marks(os.environ), **self._launch.environment.workers}
        shared.pop("DMLC_ROLE", None)  # with a role of MXNet's own servers, `import mxnet` would never return
        if self._launch.launcher == SLURM:
            shared.setdefault("SLURM_OVERLAP", "1")  # each mpirun starts a step, several of them on a shared node
        workers = self._launch.workers_on_a_host
        cores = len(os.sched_getaffinity(0))
        shared |= rank_environment(shared, cores, workers, workers + len(self._launch.servers)) | root_environment()
        shared |= session_environment(shared, folder, self._folder(stack, _SHARED_MEMORY) if shares else None)
        launch = self._launch
        count = sum(group.size for group in launch.groups)
        self._log.launched(count, len(launch.groups), len(launch.servers), launch.command)
        if announced(launch.command):
            self._starting = Starting(launch.groups, launch.settings.start_seconds)
        for group in self._launch.groups:
            self._groups.append(self._start_group(group, shared, folder))

    def _start_group(self, group: GroupLaunch, shared: dict[str, str], folder: str) -> Child:
        settings = self._launch.group_settings(group, self._last_addresses(), self._credentials, folder)
        environ = child_environment(shared, settings)
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
        heard = self._log.hear(group, line, sum(launch.size for child, launch in sizes if child.status is None))
        if heard.message:
            self._screen.message(heard.message)
        return heard.hide

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signals.append(number)

    def _ended(self, child: Child) -> None:
        """A child has ended: report it if it failed, and tell the servers if it is a group."""
        if self._stopping or self._signals:
            return
        if child in self._groups:
            self._tell_servers(self._groups.index(child))
        if child not in self._groups:
            self._screen.message(f"{child.name} ended with {_status(child)}; groups that need it end at their deadline")
        elif child.status:
            self._failed = self._failed or child.status
            # at MXNet's servers the others could not go on
            self._ends_all = child.status == MISUSED or self._launch.settings.backend == "mxnet"
            others = ""
            if any(other is not child for other in _running(self._groups)):
                others = "; stopping the others" if self._ends_all else "; the other groups go on"
            self._screen.message(f"{child.name} ended with {_status(child)}{others}")

    def _tell_servers(self, group: int) -> None:
        """Tell the servers that a group has ended: if it has not left, they need not wait for its sign of life."""
        launch = self._launch
        servers = [server for server in launch.servers if launch.settings.racks == 1 or server.rack is not None]
        if not servers:
            return
        place = place_in_rack(group, len(launch.groups), launch.settings.racks, [server.name for server in servers])
        try:
            credentials = Credentials.of(launch.group_settings(launch.groups[group], (), self._credentials))
        except HybridPSError:  # the folder of the keys is gone: the servers find out by themselves
            return
        job = launch.settings.job if credentials is None else f"{credentials.tenant}/{launch.settings.job}"
        for child in self._servers[-1]:
            if child.name in place.servers:
                child.tell(f"{job} {place.group}")

    def _stop(self) -> None:
        if self._signals:
            name, servers = signal.Signals(self._signals[0]).name, _running([*chain(*self._servers)])
            self._screen.message(f"{name}: stopping {len(_running(self._groups))} groups and {len(servers)} servers")
        self._stopping = True
        for children in (self._groups, *reversed(self._servers)):
            self._processes.stop(children, lambda: len(self._signals) > 1)
        self._processes.close()


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
    how = "exited before its part of the job was done" if child.vanished else "ended first"
    return f"{text} ({who}{how})" if rank is not None else text
