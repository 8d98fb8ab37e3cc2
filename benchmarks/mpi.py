"""`MPI.Allreduce` as a user calls it: in place, on NumPy's arrays, once for each array."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from mpi4py import MPI

from benchmarks.cases import Case
from benchmarks.contender import Contender


def mpi_flat(case: Case, vectors: int, world: MPI.Comm) -> Contender:
    """All tensors of a vector in one flat buffer."""
    return _allreduce("mpi_flat", [case.length], vectors, world)


def mpi_per_tensor(case: Case, vectors: int, world: MPI.Comm) -> Contender:
    """An array and a call for each tensor."""
    return _allreduce("mpi_per_tensor", case.tensors, vectors, world)


def _allreduce(name: str, lengths: Sequence[int], vectors: int, world: MPI.Comm) -> Contender:
    arrays = [[np.zeros(length, np.float32) for length in lengths] for _ in range(vectors)]
    flat = [array for tensors in arrays for array in tensors]

    def reduce() -> None:
        for array in flat:
            world.Allreduce(MPI.IN_PLACE, array, MPI.SUM)

    return Contender(name, arrays, reduce)
