"""Whether an MPI library sends from the memory of GPUs (CUDA-aware MPI)."""

from __future__ import annotations

import ctypes

from hybridps.mpi_groups.group import Group


def why_no_device_memory(group: Group) -> str:
    """Why the collectives of `group` cannot work on arrays of CuPy; empty if they can."""
    if not hasattr(group, "communicator"):
        return f"{type(group).__name__} is no group of MPI"
    from mpi4py import MPI  # has started: the group is of MPI

    # Open MPI and MPICH have this function, which mpi4py does not pass on; it is found through what mpi4py links to.
    query = getattr(ctypes.CDLL(MPI.__file__), "MPIX_Query_cuda_support", None)
    if query is None:
        return "the MPI library does not say whether it is CUDA-aware"
    return "" if query() else "the MPI library is not CUDA-aware"
