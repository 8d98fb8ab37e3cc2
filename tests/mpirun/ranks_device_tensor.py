"""Collectives of device tensors over MPI, with the processor as the device, and GPUs where there are any.

Run by `test_worlds.py` under mpirun with 1 to 4 and more ranks.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from hybridps.errors import LayoutError
from hybridps.tensor_collectives import Levels, devices

sys.path.insert(0, str(Path(__file__).parents[1] / "contract"))
from device_contract import CHECKS, HOST, cuda_kind  # noqa: E402

pytestmark = pytest.mark.mpi


@pytest.fixture(scope="module")
def group():
    from mpi4py import MPI

    from hybridps.mpi_groups.mpi import MPIGroup

    group = MPIGroup(MPI.COMM_WORLD.Dup(), 60)
    yield group
    group.free()


@pytest.mark.parametrize("transport", ["staged", "direct"])
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_host(group, check, transport: str) -> None:
    check(group, HOST, transport)


@pytest.mark.parametrize("transport", ["nccl", "direct", "staged"])
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_cuda(group, check, transport: str) -> None:
    """Each rank uses a GPU of its own, as far as they go."""
    kind = cuda_kind(group.rank)
    try:
        devices.DeviceTensor([kind.array(np.zeros(1, np.float32))], Levels(group, [0] * group.size), transport).close()
    except LayoutError as error:
        pytest.skip(str(error))
    check(group, kind, transport)


def test_this_mpi_library_says_whether_it_takes_device_memory(group) -> None:
    from hybridps.mpi_groups.mpi import why_no_device_memory

    reason = why_no_device_memory()
    assert reason == "" or "CUDA-aware" in reason
