"""The Group over MPI. Run by `test_worlds.py` under mpirun with 1 to 4 and more ranks."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "contract"))
from group_contract import CHECKS  # noqa: E402

pytestmark = pytest.mark.mpi


@pytest.fixture(scope="module")
def group():
    from mpi4py import MPI

    from hybridps.mpi_groups.mpi import MPIGroup

    group = MPIGroup(MPI.COMM_WORLD.Dup(), 60)
    yield group
    group.free()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_contract(group, check) -> None:
    check(group)


def test_a_late_barrier_raises(group) -> None:
    from hybridps.errors import DeadlineError
    from hybridps.mpi_groups.mpi import MPIGroup

    if group.size == 1:
        pytest.skip("one rank waits for nobody")
    impatient = MPIGroup(group.communicator.Dup(), 0.2)
    if group.rank == 0:
        with pytest.raises(DeadlineError, match="rank 0 waited 0.2 s for a barrier"):
            impatient.barrier()
    group.barrier()
    if group.rank != 0:
        impatient.deadline_seconds = 60
        impatient.barrier()  # rank 0 has entered this one
    group.barrier()


def test_all_ranks_get_the_same_bits(group) -> None:
    array = np.random.default_rng(group.rank).standard_normal(10_007).astype(np.float32)
    group.allreduce_(array)
    assert len(set(group.allgather_bytes(array.tobytes()))) == 1
