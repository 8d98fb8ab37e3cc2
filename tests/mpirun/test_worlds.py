"""Runs the files `ranks_*.py` under mpirun: each rank is a pytest of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from worlds import mpirun

HERE = Path(__file__).parent


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("file", "ranks"),
    # the operations on device tensors have no more to do with the number of ranks than their groups
    [("ranks_group.py", ranks) for ranks in (1, 2, 3, 4, 5, 7)]
    + [("ranks_device_tensor.py", ranks) for ranks in (1, 2, 3)],
)
def test_ranks(file: str, ranks: int) -> None:
    done = mpirun(ranks, ["-m", "pytest", "--with-mpi", "--only-mpi", "-x", str(HERE / file)])
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" passed") == ranks, done.stdout
