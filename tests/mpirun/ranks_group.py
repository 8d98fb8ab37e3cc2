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


@pytest.mark.parametrize(("nodes", "length"), [(1, 100_000), (2, 1000), (2, 100_000)])
def test_a_rank_that_stays_away_is_named(group, nodes, length) -> None:
    from hybridps.errors import DeadlineError, GroupError
    from hybridps.tensor_collectives import Chooser, Levels, allreduce_

    if group.size < 2:
        pytest.skip("one rank waits for nobody")
    absent = group.size - 1
    levels = Levels(group, [rank * nodes // group.size for rank in range(group.size)], deadline_seconds=0.2)
    levels.choose_by(Chooser(group.size, nodes, forced="ring"))  # the MPI library cannot tell who is missing
    tensor = levels.tensor(length, "float32")
    group.barrier()
    if group.rank != absent:
        with pytest.raises((DeadlineError, GroupError)) as raised:
            allreduce_(tensor, group)
        message = str(raised.value)
    else:
        message = ""
    heard = [text.decode() for text in group.allgather_bytes(message.encode())]
    assert any(text.startswith(f"rank {absent} did not reach a collective") for text in heard), heard


@pytest.mark.parametrize("length", [1000, 100_000])
@pytest.mark.parametrize("algorithm", ["flat", "library"])
def test_the_library_does_not_wait_for_ever(group, algorithm, length) -> None:
    from hybridps.errors import DeadlineError
    from hybridps.mpi_groups.mpi import MPIGroup
    from hybridps.tensor_collectives import Chooser, Levels, allreduce_

    if group.size < 2:
        pytest.skip("one rank waits for nobody")
    impatient = MPIGroup(group.communicator.Dup(), 60)
    chooser = Chooser(group.size, group.size, forced=algorithm)
    levels = Levels(impatient, list(range(group.size)), deadline_seconds=60, chooser=chooser)
    tensor = levels.tensor(length, "float32")
    group.barrier()
    if group.rank != 0:
        impatient.deadline_seconds = levels.lane.group.deadline_seconds = 0.2
        with pytest.raises(DeadlineError, match="waited 0.2 s for an allreduce"):
            allreduce_(tensor, impatient)
    group.barrier()


def test_a_nan_wins(group) -> None:
    for dtype in ("float32", "float64"):
        for op in ("max", "min"):
            array = np.arange(group.size + 1, dtype=dtype) * (1 + group.rank)
            array[group.rank] = np.nan
            group.allreduce_(array, op)
            assert np.isnan(array[: group.size]).all()
            assert not np.isnan(array[group.size])
