"""The program of each rank: `python -m mpi4py -m benchmarks.ranks TASK`, under mpirun."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from mpi4py import MPI

from benchmarks.cases import Case
from benchmarks.contender import Contender, check, measure
from benchmarks.memory_limit import memory_limit
from benchmarks.mpi import library_name, mpi_flat, mpi_per_tensor
from benchmarks.ours import hybridps
from benchmarks.peers import Build, load_peers
from benchmarks.results import installed_versions
from benchmarks.task import Answer, Task


def main(path: str) -> None:
    """Measure all cases; rank 0 writes the answer."""
    world = MPI.COMM_WORLD
    task = Task.read(Path(path))
    peers, absent = load_peers(task, world)
    seconds = []
    for case in task.cases:
        seconds.append(_measure(case, task, peers, world))
        if world.rank == 0:
            print(f"{case.name}, {case.nbytes} bytes: done", file=sys.stderr, flush=True)
    if world.rank == 0:
        Answer(seconds, absent, versions()).write(task.folder)


def _measure(case: Case, task: Task, peers: Mapping[str, Build], world: MPI.Comm) -> dict[str, list[float]]:
    with ExitStack() as stack:
        contenders = _contenders(case, task, peers, world)
        for contender in contenders:
            stack.callback(contender.close)
        for contender in contenders:
            check(contender, world)
        return measure(contenders, case.nbytes, task.rounds, world)


def _contenders(case: Case, task: Task, peers: Mapping[str, Build], world: MPI.Comm) -> list[Contender]:
    found = [hybridps(case, task, world), mpi_flat(case, task.vectors, world)]
    if len(case.tensors) > 1:
        found.append(mpi_per_tensor(case, task.vectors, world))
    for build in peers.values():
        found += build(case)
    return [*found, memory_limit(case, task.vectors)]


def versions() -> dict[str, str]:
    """Return what `installed_versions` does, and the version of the MPI library."""
    return {"mpi": library_name()} | installed_versions()


if __name__ == "__main__":
    main(sys.argv[1])
