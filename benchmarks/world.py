"""Starts the ranks with mpirun: on this host, or on nodes that are network namespaces."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType

from benchmarks.ending import end_within
from benchmarks.exchanges import Exchanges
from benchmarks.task import Answer, Task
from hybridps.cli.run.mpirun import OPEN_MPI, find_mpirun, rank_environment, root_environment
from hybridps.cli.run.plan.hosts import Host
from hybridps.links import Links
from hybridps.processes import die_with_parent, without_rank_marks

TOP = Path(__file__).parents[1]
END_SECONDS = 10
POLL_SECONDS = 0.1


def run_ranks(task: Task, links: Links | None) -> Answer:
    """Start the ranks and wait for them. Return their answer. Raises RuntimeError if they fail."""
    path = task.write()
    mpirun = find_mpirun()
    if links and mpirun.flavour != OPEN_MPI:
        raise RuntimeError(f"limited links need Open MPI's mpirun: {mpirun.path} is {mpirun.flavour}'s; use --nodes 1")
    words = [sys.executable, "-m", "mpi4py", "-m", "benchmarks.ranks", str(path)]
    environment = _environment(task, links)
    hosts = _hosts(task, links) if links else ()
    command = [*mpirun.command(len(task.node_of_rank), hosts, {}, words)]
    if links:
        command = [*links.launcher, *command]
    status = _wait(command, environment, mpirun.death_signal)
    if status:
        raise RuntimeError(f"the ranks failed: mpirun ended with status {status}")
    return Answer.read(task.folder)


def start_workers(task: Exchanges) -> None:
    """Start the workers on this host, and wait for them. Raises RuntimeError if they or servers that they need fail."""
    mpirun = find_mpirun()
    command = mpirun.command(
        task.workers, (), {}, [sys.executable, "-m", "mpi4py", "-m", "benchmarks.push_pull_ranks", str(task.write())]
    )
    environment = _rank_environment(task.workers, task.folder)
    status = _wait(list(command), environment, mpirun.death_signal, partial(_check_servers, task))
    if status:
        raise RuntimeError(f"the ranks failed: mpirun ended with status {status}")


def end_when_signalled() -> None:
    """From now on, let SIGTERM and SIGHUP end the program through all `finally` clauses.

    These end what was started, and remove the namespaces.
    """

    def end(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)


def _environment(task: Task, links: Links | None) -> dict[str, str]:
    environment = _rank_environment(len(task.node_of_rank), task.folder)
    return environment | (links.variables(Path(task.folder)) if links else {})


def _rank_environment(ranks: int, folder: str) -> dict[str, str]:
    kept = without_rank_marks(os.environ)
    wanted = root_environment() | rank_environment(kept, os.cpu_count() or 1, ranks, ranks)
    paths = f"{Path(sys.executable).parent}{os.pathsep}{kept.get('PATH', '')}"
    # files that the MPI library leaves when it is killed go with the folder
    return kept | wanted | {"PATH": paths, "PYTHONPATH": str(TOP), "TMPDIR": folder}


def _hosts(task: Task, links: Links) -> tuple[Host, ...]:
    slots = Counter(task.node_of_rank)
    return tuple(Host(address, slots[node]) for node, address in enumerate(links.addresses))


def _wait(
    command: list[str], environment: dict[str, str], death_signal: int, check: Callable[[], None] = lambda: None
) -> int:
    """Return the command's exit status. `check` may raise, while the command runs or if it fails, which ends it."""
    process = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        cwd=TOP,
        preexec_fn=partial(die_with_parent, death_signal, os.getpid()),
    )
    try:
        while process.poll() is None:
            check()
            time.sleep(POLL_SECONDS)
        if process.returncode:
            check()
        return process.returncode
    finally:
        process.terminate()
        end_within(process, END_SECONDS)


def _check_servers(task: Exchanges) -> None:
    """Raise RuntimeError if a server that is needed has failed. MXNet's end with status 0 after their workers."""
    for way in task.ways:
        for pid in () if task.done_file(way.case).exists() else way.pids:
            ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended and (ended.si_code, ended.si_status) != (os.CLD_EXITED, 0):
                how = "status" if ended.si_code == os.CLD_EXITED else "signal"
                raise RuntimeError(
                    f"a server or scheduler of {way.name}, process {pid}, ended with {how} {ended.si_status}, and with "
                    "it the ranks"
                )
