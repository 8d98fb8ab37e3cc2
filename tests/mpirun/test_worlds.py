"""Runs the files `ranks_*.py` under mpirun: each rank is a pytest of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from worlds import mpirun

HERE = Path(__file__).parent


@pytest.mark.timeout(300)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5, 7])
@pytest.mark.parametrize("file", sorted(path.name for path in HERE.glob("ranks_*.py")))
def test_ranks(file: str, ranks: int) -> None:
    done = mpirun(ranks, ["-m", "pytest", "--with-mpi", "--only-mpi", "-x", str(HERE / file)])
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" passed") == ranks, done.stdout
