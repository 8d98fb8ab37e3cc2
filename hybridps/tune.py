"""Measure which collective algorithm is fastest for each size: `python -m hybridps -m hybridps.tune FILE`.

All ranks of a group run this; `hybridps tune` starts it. It writes the entries for these ranks and nodes to the table
in FILE.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from statistics import median

import msgspec
import numpy as np

from hybridps.config import tuning_file
from hybridps.errors import ConfigError, LayoutError
from hybridps.job import open_job
from hybridps.quantities import rounded
from hybridps.tensor_collectives import Chooser, Entry, Levels, Tensor, Tuning, allreduce_
from hybridps.tensor_collectives.choice import ANY_SIZE, VERSION, Algorithm

SIZES = tuple(4096 * 4**power for power in range(8))
"""In bytes: 4 KB to 64 MB."""

CHUNKS = (256 << 10, 1 << 20, 4 << 20)

REPEATS = 7
LONGEST_SECONDS = 2.0
"""The time after which the repeats of one candidate end."""


def main(path: Path) -> None:
    """Measure, and write the table to `path`. Every rank of the job calls this."""
    with open_job() as job:
        levels = job.algorithm().levels
        if levels.note:
            raise LayoutError(f"without shared memory there is only one algorithm: {levels.note}").on_all_ranks()
        entries = measure(levels, say=job.worker == 0)
        if job.worker == 0:
            merged(path, entries).write(path)
            print(f"hybridps: wrote {path}", file=sys.stderr)


def measure(levels: Levels, sizes: Sequence[int] = SIZES, say: bool = False) -> list[Entry]:
    """Return the fastest candidate for each size. All ranks of the group call this. `say`: whether to print times."""
    ranks, nodes = levels.group.size, len(levels.topology.members)
    before = levels.chooser
    best = []
    for nbytes in sizes:
        tensor = levels.tensor(nbytes // 4, "float32")
        timed = []
        for algorithm, chunk_bytes in candidates(nodes, nbytes):
            levels.choose_by(Chooser(ranks, nodes, forced=algorithm, chunk_bytes=chunk_bytes))
            timed.append(Entry(ranks, nodes, nbytes, algorithm, chunk_bytes, round(_microseconds(tensor, levels), 1)))
        best.append(min(timed, key=lambda entry: entry.microseconds or 0.0))
        if say:
            others = ", ".join(
                f"{e.algorithm} ({e.chunk_bytes >> 10} KB) {rounded(e.microseconds or 0.0, 6)}" for e in timed
            )
            print(f"{nbytes} bytes: {best[-1].algorithm}; microseconds: {others}", file=sys.stderr, flush=True)
    levels.choose_by(before)
    return best


def candidates(nodes: int, nbytes: int) -> list[tuple[Algorithm, int]]:
    """Return the candidates: algorithms, each with several chunk sizes if that makes a difference."""
    if nodes == 1:
        return [("flat", CHUNKS[0]), ("node", CHUNKS[0])]
    between: tuple[Algorithm, ...] = ("library", "ring", "halving_doubling")
    between += ("multi_ring",) if nodes > 2 else ()
    chunks = [chunk for chunk in CHUNKS if chunk <= max(nbytes, CHUNKS[0])]
    return [("flat", CHUNKS[0]), *((algorithm, chunk) for algorithm in between for chunk in chunks)]


def merged(path: Path, best: Sequence[Entry]) -> Tuning:
    """Return the table at `path`, with `best` in place of its entries for the same ranks and nodes.

    Consecutive sizes with the same choice become one entry. A choice holds up to twice its size, halfway to the next
    one.
    """
    runs = [list(same) for _, same in groupby(best, key=lambda entry: (entry.algorithm, entry.chunk_bytes))]
    entries = [msgspec.structs.replace(same[-1], up_to_bytes=2 * same[-1].up_to_bytes) for same in runs]
    entries[-1] = msgspec.structs.replace(entries[-1], up_to_bytes=ANY_SIZE)
    try:
        kept = Tuning.read(path).entries if path.exists() else ()
    except ConfigError as error:
        print(f"hybridps: begins anew: {error}", file=sys.stderr)
        kept = ()
    shape = (best[0].ranks, best[0].nodes)
    others = [entry for entry in kept if (entry.ranks, entry.nodes) != shape]
    machine = f"{socket.gethostname()}, {os.cpu_count()} cores"
    return Tuning(VERSION, machine, (*others, *entries))


def _microseconds(tensor: Tensor, levels: Levels) -> float:
    """Return the median, over the repeats, of the slowest rank's time."""
    group = levels.group
    allreduce_(tensor, group)
    taken: list[float] = []
    while len(taken) < REPEATS and sum(taken) < LONGEST_SECONDS:
        group.barrier()
        repeats = max(1, min(32, (1 << 20) // tensor.vectors[0].nbytes))
        began = time.perf_counter()
        for _ in range(repeats):
            allreduce_(tensor, group)
        slowest = np.array([(time.perf_counter() - began) / repeats])
        group.allreduce_(slowest, "max")  # the same on all ranks, so that all stop after the same repeat
        taken.append(float(slowest[0]))
    return 1e6 * median(taken)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else tuning_file())
