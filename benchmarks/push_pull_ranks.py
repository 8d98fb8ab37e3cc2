"""The program of each rank: `python -m mpi4py -m benchmarks.push_pull_ranks TASK`, under mpirun."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path

from mpi4py import MPI

from benchmarks.cases import Case
from benchmarks.contender import meet
from benchmarks.exchanges import MOMENTUM, PEERS, RATE, Exchanges, Measured
from benchmarks.pushers import Ours, Pusher, Theirs
from benchmarks.ranks import versions

BYTES_PER_TIMING = 4 << 20
MOST_REPEATS = 16
PAUSE_SECONDS = 0.002
LEAD_SECONDS = 0.02

Rounds = dict[str, list[float]]


def main(path: str) -> None:
    """Measure all cases; rank 0 writes the answer."""
    world = MPI.COMM_WORLD
    task = Exchanges.read(Path(path))
    measured = Measured([], [], versions())
    for case in task.cases:
        seconds, server_seconds = _measure(case, task, world)
        measured.seconds.append(seconds)
        measured.server_seconds.append(server_seconds)
        if world.rank == 0:
            print(f"{case.name}, {case.nbytes} bytes: done", file=sys.stderr, flush=True)
    if world.rank == 0:
        measured.write(task.folder)


def _measure(case: Case, task: Exchanges, world: MPI.Comm) -> tuple[Rounds, Rounds]:
    """Return the seconds of an exchange and the servers' CPU seconds in it, for each round: A B C A B C ..."""
    repeats = max(1, min(MOST_REPEATS, BYTES_PER_TIMING // case.nbytes))
    ways = [way for way in task.ways if way.case in ("", case.name)]
    pids = {way.name: way.pids for way in ways}
    with ExitStack() as stack:
        pushers: list[Pusher] = []
        for way in ways:
            pushers.append((Theirs if way.name in PEERS else Ours)(way, case, task, world))
            stack.callback(pushers[-1].close)
        for pusher in pushers:
            check(pusher, task, world)
        seconds: Rounds = {name: [] for name in pids}
        server_seconds: Rounds = {name: [] for name in pids}
        for _ in range(task.rounds):
            for pusher in pushers:
                before = _cpu_seconds(pids[pusher.name])
                seconds[pusher.name].append(_time(pusher, repeats, world))
                server_seconds[pusher.name].append((_cpu_seconds(pids[pusher.name]) - before) / repeats)
        meet(world, PAUSE_SECONDS)
        if world.rank == 0:
            task.done_file(case.name).touch()
    return seconds, server_seconds


def check(pusher: Pusher, task: Exchanges, world: MPI.Comm) -> None:
    """Exchange known numbers twice: the gradient of worker r is r + 1. Raises RuntimeError if a result is wrong."""
    total = sum(range(1, world.size + 1))
    weight = velocity = 0.0
    for _ in range(2):
        pusher.fill(world.rank + 1)
        world.Barrier()
        pusher.exchange(1)
        meet(world, PAUSE_SECONDS)
        velocity = MOMENTUM * velocity - RATE * total
        weight += velocity
        wanted = weight if task.rule == "momentum" else total
        least, most = pusher.seen()
        if pusher.exact and max(abs(least - wanted), abs(most - wanted)) > 1e-5 * abs(wanted):
            raise RuntimeError(f"{pusher.name}: elements from {least} to {most} were received instead of {wanted}")
        if not least <= most:
            raise RuntimeError(f"{pusher.name}: elements from {least} to {most} were received")


def _time(pusher: Pusher, repeats: int, world: MPI.Comm) -> float:
    """Return the seconds of one exchange, from a moment that all workers agree on until the last worker is done."""
    pusher.fill(1e-3)
    meet(world, PAUSE_SECONDS)
    begin = world.allreduce(time.monotonic() + LEAD_SECONDS, MPI.MAX)
    time.sleep(max(0.0, begin - time.monotonic()))
    pusher.exchange(repeats)
    end = time.monotonic()
    meet(world, PAUSE_SECONDS)
    return float(world.allreduce(end, MPI.MAX) - begin) / repeats


def _cpu_seconds(pids: Sequence[int]) -> float:
    """Return the CPU time of all threads of these processes, and of their children."""
    children = [Path(f"/proc/{pid}/task/{pid}/children").read_text().split() for pid in pids]
    pids = [*pids, *map(int, chain.from_iterable(children))]
    tasks = [path for pid in pids for path in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    return sum(int(path.read_text().split()[0]) for path in tasks) / 1e9


if __name__ == "__main__":
    main(sys.argv[1])
