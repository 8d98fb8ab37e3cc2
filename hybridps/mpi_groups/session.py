"""The session: this process's part in the MPI world of a job, from start to end."""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import ClassVar, NoReturn

import msgspec

from hybridps import errors
from hybridps.addresses import is_local
from hybridps.config import PREFIX, Settings, load_settings, started_by_mpi, to_environment, without_secrets
from hybridps.errors import FAILED, ConfigError, DeadlineError, GroupError, HybridPSError
from hybridps.events import Configured, EventLog, Failed, Noted, Planned, Waited, check_run_folder, say
from hybridps.mpi_groups.group import Group, allgather
from hybridps.mpi_groups.headcount import Headcount
from hybridps.mpi_groups.plan import WORKER, Place, Plan, make_plan
from hybridps.mpi_groups.rank_end import end_world, wait_for_reader
from hybridps.mpi_groups.servers_view import ServersView
from hybridps.mpi_groups.session_live import SessionLive, make_live
from hybridps.mpi_groups.threads import SoloGroup
from hybridps.mpi_groups.watchdog import Watchdog
from hybridps.progress import restarts_line
from hybridps.quantities import counted
from hybridps.tracing.recorder import Recorder, check_trace

_OF_LAUNCHER = {
    f"{PREFIX}{name}"
    for name in ("AWAITS_REFUSING", "GROUP_INDEX", "LAUNCH", "LIVE_FOLDER", "PEERS", "WORKERS_ON_HOST")
}
"""Settings that only the launcher gives, and that say nothing to a user."""


class _Hello(msgspec.Struct, forbid_unknown_fields=True):
    """What each rank tells all others at the start."""

    role: str
    host: str
    settings: dict[str, str]
    live: str = ""
    """The live folder, and a name for the run: those of the first rank count."""
    run: str = ""
    error: str = ""


class Session:
    """The plan, groups, events and watchdog of a rank. `open_session` makes it; it is a context manager.

    Leaving the context with an exception ends the group on all of its ranks.
    """

    opened = 0
    """How many sessions this process has opened."""
    latest: ClassVar[Session | None] = None
    """The last one."""

    def __init__(self, settings: Settings, plan: Plan, place: Place, world: Group, hosts: int) -> None:
        Session.opened, Session.latest = Session.opened + 1, self
        self.settings = settings
        self.hosts = hosts
        """The number of hosts of this MPI world; more exactly, the number of sets of ranks that share memory."""
        self.plan = plan
        self.place = place
        self.world = world
        """All ranks of this MPI world, including servers."""
        self.workers = world.split(0 if place.role == WORKER else 1)
        """The workers of this MPI world (for a server: the servers)."""
        self.group = self.workers.split(max(place.group, 0))
        """The group of this worker."""
        self.live = SessionLive(None, "", "")
        """What this rank shows of the run; replaced when the ranks have told each other."""
        self.is_full = False
        """Whether the whole job is on this host and has a worker for each core. Nothing can be hidden then, because
        what communicates keeps another worker from computing. Known when the servers are announced."""
        self.steps = 0
        """The number of steps of this rank's models, for the record."""
        self.headcount = Headcount(plan.groups, plan.workers)
        """The numbers of groups and workers of the job, as the program sees them."""
        self.servers_view = ServersView()
        """What this rank knows of its servers. The job sets it."""
        name = place.worker if place.role == WORKER else f"server-{place.world_rank}"
        self.events = EventLog(settings.run_folder, name)
        self.trace = (
            Recorder() if place.role != WORKER else Recorder.of(settings, place.worker, place.group, place.group_rank)
        )
        """What this worker records of its steps."""
        self.watchdog = Watchdog(settings.deadline_seconds, self._late)
        self.events.emit(Configured(time.time(), msgspec.to_builtins(without_secrets(settings))))

    @property
    def is_one_group(self) -> bool:
        """Whether this MPI world is one group, so that no other group ends with it."""
        return self.plan.groups == 1 or self.settings.group_index is not None

    def announce(self, servers: list[str]) -> None:
        """Write the plan to the events, when the servers are known. The first worker also prints it."""
        place, plan = self.place, self.plan
        here = self.settings.workers_on_host or (self.workers.size if self.hosts == 1 else 0)
        self.is_full = here >= max(plan.workers, os.cpu_count() or 1) and all(map(is_local, servers))
        numbers = place.worker, plan.workers, place.group, plan.groups, place.group_rank, place.node
        planned = Planned(place.role, *numbers, servers, self.is_full)
        self.events.emit(planned)
        self.live.begin(planned, self.settings, self.events, lambda: self.steps, self.watchdog.waits_for)
        if place.worker == 0 and not self.settings.quiet:
            sizes = " + ".join(str(size) for size in plan.group_sizes)
            told = to_environment(without_secrets(self.settings))
            said = " ".join(f"{name}={text}" for name, text in sorted(told.items()) if name not in _OF_LAUNCHER)
            say(
                f"{counted(plan.workers, 'worker')} in {counted(plan.groups, 'group')} ({sizes}), "
                f"{counted(len(servers), 'server')}{'; ' if said else ''}{said}"
            )

    def note(self, message: str) -> None:
        """Write a message for the user to the events. The leader of the group also prints it."""
        self.events.emit(Noted(message))
        if self.place.is_leader and not self.settings.quiet:
            say(message)

    def tell_launcher(self, how: str) -> None:
        """Tell the launcher, if there is one, how a group that dies is restarted. The leader of the group does."""
        if self.place.is_leader and self.settings.launch is not None:
            print(restarts_line(how), flush=True)

    def close(self) -> None:
        """Stop the watchdog, close the events and free the groups. Later calls do nothing."""
        self.watchdog.stop()
        self.live.close()
        self.events.close()
        self.trace.close()
        for group in (self.group, self.workers, self.world):
            group.free()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.end_if_failed(error)
        self.close()

    def end_if_failed(self, error: BaseException | None) -> None:
        """End the group on all of its ranks because of an error. `sys.exit(0)` is no error."""
        if error is not None and not (isinstance(error, SystemExit) and not error.code):
            end_group(error)

    def _late(self, what: str, seconds: float, final: bool) -> None:
        worker, group = self.place.worker, self.place.group
        line = f"worker {worker} (group {group}, process {os.getpid()}) has waited {seconds:.0f} s in {what}"
        run = f" {folder}" if (folder := self.settings.run_folder) is not None else ""
        shows = f"`hybridps top{run}` shows the step of each worker"
        self.events.emit(Waited(what, round(seconds, 3)))
        if final:
            end_group(DeadlineError(f"{line}: another rank, group or server is gone or stuck; {shows}"))
        ends = f"if it still waits after {self.settings.deadline_seconds:g} s (deadline_seconds), the group ends"
        say(f"{line}; {shows}; {ends}")


def open_session(read_settings: Callable[[], Settings] = load_settings, role: str = WORKER) -> Session:
    """Join the MPI world that this process was started in (a world of one without an MPI launcher).

    Every rank of the world must call this. An error in the settings of any rank is raised on all ranks, marked
    `everywhere`.
    """
    error = ""
    try:
        settings = read_settings()
        check_run_folder(settings.run_folder)
        check_trace(settings)
    except HybridPSError as wrong:
        settings, error = Settings(), str(wrong)
    world, host = _join_world(settings.deadline_seconds)
    told = to_environment(without_secrets(settings))
    told.pop(PREFIX + "GROUP_INDEX", None)
    made, live, run, problem = make_live(settings, world.rank == 0 and not error)
    hellos = allgather(world, _Hello(role, host, told, live, run, error), _Hello)
    try:
        _check_equal(hellos)
        plan = make_plan([other.role for other in hellos], [other.host for other in hellos], settings)
    except HybridPSError as wrong:
        if made is not None:
            made.close()
        raise wrong.on_all_ranks() from None
    session = Session(settings, plan, plan.places[world.rank], world, len({other.host for other in hellos}))
    session.live = SessionLive(made, hellos[0].live, hellos[0].run)
    if problem:
        session.note(problem)
    return session


def agree(group: Group, error: HybridPSError | None, everywhere: bool = True) -> None:
    """Raise the error of the first rank that has one, on all ranks of the group.

    On other ranks, the error has the nearest class that `hybridps.errors` defines. `everywhere`: whether the group has
    all workers of the MPI world.
    """
    nearest = next((kind.__name__ for kind in type(error).__mro__ if kind.__module__ == errors.__name__), "")
    for rank, told in enumerate(group.allgather_bytes(f"{nearest} {error}".encode() if error else b"")):
        if told:
            kind, _, text = told.decode().partition(" ")
            found = error if error is not None and rank == group.rank else getattr(errors, kind)(text)
            raise found.on_all_ranks() if everywhere else found


_ending = threading.RLock()
"""Held by the thread that ends this process, because other threads may have met the same error."""


def end_group(error: BaseException) -> NoReturn:
    """Report an unhandled error once, and end all ranks of this MPI world."""
    _ending.acquire()
    everywhere = isinstance(error, HybridPSError) and error.everywhere
    status, text = _exit_status_and_text(error)
    if (session := Session.latest) is not None:
        session.events.emit(Failed(_in_a_line(error), everywhere, session.steps))
    module = sys.modules.get("mpi4py.MPI")
    runs = module is not None and module.Is_initialized() and not module.Is_finalized()
    communicator = module.COMM_WORLD if module is not None and runs else None
    if not everywhere or communicator is None or communicator.Get_rank() == 0:
        if communicator is not None and not isinstance(error, HybridPSError):
            text += f"\nhybridps: rank {communicator.Get_rank()} failed; its group is ended"
        with suppress(Exception):  # the group ends even if nobody can be told
            print(text, file=sys.stderr)
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    if communicator is not None:
        wait_for_reader()
    if communicator is not None and everywhere:
        # All ranks get here. The first exit ends them all, so wait until the rank that reports has done so.
        request, end = communicator.Ibarrier(), time.monotonic() + 5.0
        while not request.Test() and time.monotonic() < end:
            time.sleep(0.001)
    elif communicator is not None:
        end_world(communicator.Abort, status)
    os._exit(status)


def _exit_status_and_text(error: BaseException) -> tuple[int, str]:
    """Return the exit status after an error, and the text to print."""
    if isinstance(error, HybridPSError):
        return error.status, f"hybridps: error: {error}"
    if not isinstance(error, SystemExit):
        return FAILED, "".join(traceback.format_exception(type(error), error, error.__traceback__)).rstrip()
    if isinstance(error.code, int):
        return error.code, f"hybridps: exit {error.code}"
    return FAILED, str(error.code)


def _in_a_line(error: BaseException) -> str:
    """Return an error as it stands in the events."""
    if isinstance(error, HybridPSError):
        return str(error)
    if isinstance(error, SystemExit):
        return f"exit status {error.code}" if isinstance(error.code, int) else str(error.code)
    return "".join(traceback.format_exception_only(type(error), error)).strip().partition("\n")[0]


def _join_world(deadline_seconds: float) -> tuple[Group, str]:
    """Return a duplicate of the world, and a name for the host that is equal on ranks that share memory."""
    if not started_by_mpi():
        return SoloGroup(), "here"
    from mpi4py import MPI

    from hybridps.mpi_groups.ledger import Ledger
    from hybridps.mpi_groups.mpi import MPIGroup

    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        raise GroupError("this MPI library was started without MPI_THREAD_MULTIPLE, which hybridps needs")
    node = MPI.COMM_WORLD.Split_type(MPI.COMM_TYPE_SHARED)
    first = node.bcast(MPI.COMM_WORLD.Get_rank())
    node.Free()
    return MPIGroup(MPI.COMM_WORLD.Dup(), deadline_seconds, Ledger(MPI.COMM_WORLD.Dup())), str(first)


def _check_equal(hellos: list[_Hello]) -> None:
    for hello in hellos:
        if hello.error:
            raise ConfigError(hello.error)
    first = next((rank for rank, hello in enumerate(hellos) if hello.role == WORKER), 0)
    for rank, hello in enumerate(hellos):
        here, there = hellos[first].settings, hello.settings
        for name in sorted(set(here) | set(there)):
            if hello.role == WORKER and here.get(name) != there.get(name):
                raise ConfigError(
                    f"{name} differs between ranks: {here.get(name, 'unset')} on rank {first}, "
                    f"{there.get(name, 'unset')} on rank {rank}; give all ranks the same settings"
                )
