"""The shortest time in which memory can perform an allreduce between the ranks of a host.

With R ranks and V vectors of n bytes each, every byte of every vector must be read once (to be summed) and written once
(with the sum): R V n bytes are read and as many written, by R ranks at the same time. The limit is the time in which
the ranks together do just that, each with V n bytes of its own: `a += 1`, in place, on huge pages. No data crosses
cores.
"""

from __future__ import annotations

import numpy as np

from benchmarks.cases import Case
from benchmarks.contender import Contender
from hybridps.memory import private_memory


def memory_limit(case: Case, vectors: int) -> Contender:
    """Return a contender that reads and writes each vector once. It reduces nothing, so there is nothing to check."""
    arrays = [private_memory(case.nbytes).view(np.float32) for _ in range(vectors)]

    def reduce() -> None:
        for array in arrays:
            np.add(array, np.float32(1), out=array)

    return Contender("memory_limit", [], reduce)
