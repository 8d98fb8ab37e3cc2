"""Runs the files `ranks_*.py` under mpirun: each rank is a pytest of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from worlds import mpirun

HERE = Path(__file__).parent


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("ranks", "files"),
    # the operations on device tensors have no more to do with the number of ranks than their groups
    [
        pytest.param(1, ["ranks_group.py", "ranks_device_tensor.py"], marks=pytest.mark.nightly),
        (2, ["ranks_group.py", "ranks_device_tensor.py"]),
        pytest.param(3, ["ranks_device_tensor.py"], marks=pytest.mark.nightly),
        pytest.param(3, ["ranks_group.py"], marks=pytest.mark.nightly),
        pytest.param(4, ["ranks_group.py"], marks=pytest.mark.nightly),
        pytest.param(5, ["ranks_group.py"], marks=pytest.mark.nightly),
        pytest.param(7, ["ranks_group.py"], marks=pytest.mark.nightly),
    ],
)
def test_ranks(ranks: int, files: list[str]) -> None:
    paths = [str(HERE / file) for file in files]
    done = mpirun(ranks, ["-m", "pytest", "--with-mpi", "--only-mpi", "-x", *paths])
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" passed") == ranks, done.stdout
