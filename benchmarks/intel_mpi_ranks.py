"""Ranks of an MPI library other than the benchmark's, which obey commands line by line.

python -m mpi4py -m benchmarks.intel_mpi_ranks, under the library's mpirun, in an environment that has NumPy, mpi4py and
the library. Rank 0 reads JSON lists from standard input and answers each with a line of JSON, until it reads null or
the input ends.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from mpi4py import MPI

from benchmarks.cases import Case
from benchmarks.contender import Contender, check, meet, time_one
from benchmarks.mpi import library_name, mpi_flat, mpi_out_of_place, mpi_per_tensor

MAKERS = {maker.__name__: maker for maker in (mpi_flat, mpi_out_of_place, mpi_per_tensor)}


class Ranks:
    """The contenders of a case."""

    def __init__(self, world: MPI.Comm) -> None:
        self._world = world
        self._contenders: dict[str, Contender] = {}

    def library(self) -> str:
        return library_name()

    def make(self, names: Sequence[str], tensors: Sequence[int], vectors: int) -> None:
        """Make these contenders, and check their sums. Those of the previous case are dropped."""
        self._contenders.clear()
        for name in names:
            self._contenders[name] = MAKERS[name](Case("", tuple(tensors)), vectors, self._world)
            check(self._contenders[name], self._world)

    def time(self, name: str, repeats: int) -> float:
        return time_one(self._contenders[name], repeats, self._world)


def main() -> None:
    world = MPI.COMM_WORLD
    ranks = Ranks(world)
    while words := _told(world):
        method, *arguments = words
        answer = getattr(ranks, method)(*arguments)
        if world.rank == 0:
            print(json.dumps(answer), flush=True)


def _told(world: MPI.Comm) -> Any:
    """Return rank 0's next command on all ranks, which wait asleep; None at the end of its input."""
    line = sys.stdin.readline() if world.rank == 0 else ""
    meet(world)
    return json.loads(world.bcast(line) or "null")


if __name__ == "__main__":
    main()
