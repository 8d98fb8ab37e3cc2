"""Whether the MPI library can send from GPU memory (CUDA-aware MPI)."""

from __future__ import annotations

import ctypes

from hybridps.mpi_groups.group import Group


def why_no_device_memory(group: Group) -> str:
    """Why the collectives of `group` cannot work on CuPy arrays; empty if they can."""
    if not hasattr(group, "communicator"):
        return f"{type(group).__name__} is not an MPI group"
    from mpi4py import MPI  # MPI has started: this is an MPI group

    # Open MPI and MPICH have this function. mpi4py does not expose it, but links to the library.
    query = getattr(ctypes.CDLL(MPI.__file__), "MPIX_Query_cuda_support", None)
    if query is None:
        return "the MPI library does not say whether it is CUDA-aware"
    return "" if query() else "the MPI library is not CUDA-aware"
