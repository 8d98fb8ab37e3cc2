"""Starting the ranks with mpirun: on this host, or on nodes that are network namespaces."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from types import FrameType

from benchmarks.links import Links
from benchmarks.task import Answer, Task
from hybridps.cli.hosts import Host
from hybridps.cli.lifetime import die_with_parent
from hybridps.cli.mpirun import OPEN_MPI, find_mpirun, rank_environment, root_environment, without_rank_marks

TOP = Path(__file__).parents[1]
END_SECONDS = 10


def run_ranks(task: Task, links: Links | None) -> Answer:
    """Start the ranks, wait, and return what they found. Raises RuntimeError if they fail."""
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


def start_ranks(module: str, path: Path, ranks: int, folder: str) -> None:
    """Start ranks of a module on this host, and wait. Raises RuntimeError if they fail."""
    mpirun = find_mpirun()
    command = mpirun.command(ranks, (), {}, [sys.executable, "-m", "mpi4py", "-m", module, str(path)])
    status = _wait(list(command), _rank_environment(ranks, folder), mpirun.death_signal)
    if status:
        raise RuntimeError(f"the ranks failed: mpirun ended with status {status}")


def end_by_signal(number: int, frame: FrameType | None) -> None:
    """Leave through all `finally` clauses, which end what was started and remove the namespaces."""
    sys.exit(128 + number)


def _environment(task: Task, links: Links | None) -> dict[str, str]:
    environment = _rank_environment(len(task.node_of_rank), task.folder)
    return environment | (links.variables(Path(task.folder)) if links else {})


def _rank_environment(ranks: int, folder: str) -> dict[str, str]:
    kept = without_rank_marks(os.environ)
    wanted = root_environment() | rank_environment(kept, os.cpu_count() or 1, ranks, ranks)
    paths = f"{Path(sys.executable).parent}{os.pathsep}{kept.get('PATH', '')}"
    # what the MPI library leaves behind when it is ended goes with the folder
    return kept | wanted | {"PATH": paths, "PYTHONPATH": str(TOP), "TMPDIR": folder}


def _hosts(task: Task, links: Links) -> tuple[Host, ...]:
    slots = Counter(task.node_of_rank)
    return tuple(Host(address, slots[node]) for node, address in enumerate(links.addresses))


def _wait(command: list[str], environment: dict[str, str], death_signal: int) -> int:
    process = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        cwd=TOP,
        preexec_fn=partial(die_with_parent, death_signal, os.getpid()),
    )
    try:
        return process.wait()
    finally:
        process.terminate()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
