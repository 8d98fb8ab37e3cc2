"""`MPI.Allreduce` as a user calls it: on NumPy arrays, with one call for each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from mpi4py import MPI

from benchmarks.cases import Case
from benchmarks.contender import Contender


def mpi_flat(case: Case, vectors: int, world: MPI.Comm) -> Contender:
    """Return a contender with all tensors of a vector in one flat buffer, in place."""
    return _in_place("mpi_flat", [case.length], vectors, world)


def mpi_per_tensor(case: Case, vectors: int, world: MPI.Comm) -> Contender:
    """Return a contender with an array and a call for each tensor, in place."""
    return _in_place("mpi_per_tensor", case.tensors, vectors, world)


def mpi_out_of_place(case: Case, vectors: int, world: MPI.Comm) -> Contender:
    """Return a contender with all tensors of a vector in one flat buffer, and another buffer for the sum."""
    arrays, results = _zeros([case.length], vectors), _zeros([case.length], vectors)

    def reduce() -> None:
        for (array,), (result,) in zip(arrays, results, strict=True):
            world.Allreduce(array, result, MPI.SUM)

    return Contender("mpi_out_of_place", arrays, reduce, results)


def library_name() -> str:
    """Return the name and the version of the MPI library."""
    return MPI.Get_library_version().partition(",")[0].partition(" for ")[0].strip("\0\n ")


def _in_place(name: str, lengths: Sequence[int], vectors: int, world: MPI.Comm) -> Contender:
    arrays = _zeros(lengths, vectors)
    flat = [array for tensors in arrays for array in tensors]

    def reduce() -> None:
        for array in flat:
            world.Allreduce(MPI.IN_PLACE, array, MPI.SUM)

    return Contender(name, arrays, reduce)


def _zeros(lengths: Sequence[int], vectors: int) -> list[list[np.ndarray]]:
    return [[np.zeros(length, np.float32) for length in lengths] for _ in range(vectors)]
