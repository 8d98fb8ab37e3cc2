"""hybridps: one allreduce of all vectors of a rank, which are in its arena."""

from __future__ import annotations

from mpi4py import MPI

from benchmarks.cases import Case
from benchmarks.contender import Contender
from benchmarks.task import Task
from hybridps.mpi_groups.mpi import MPIGroup
from hybridps.tensor_collectives import Levels, allreduce_

DEADLINE_SECONDS = 600


def hybridps(case: Case, task: Task, world: MPI.Comm) -> Contender:
    """Return a contender whose tensors are in the arena: one flat buffer for each vector."""
    group = MPIGroup(world.Dup(), DEADLINE_SECONDS)
    levels = Levels(group, list(task.node_of_rank), DEADLINE_SECONDS, task.wire or "exact")
    tensor = levels.tensor(case.length, "float32", vectors=task.vectors)

    def close() -> None:
        levels.close()
        group.free()

    return Contender(
        "hybridps",
        [[vector] for vector in tensor.vectors],
        lambda: allreduce_(tensor, group),
        sums_vectors=True,
        close=close,
    )
