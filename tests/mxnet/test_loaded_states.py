"""Files of optimizer states that some workers do not have: all continue from the first worker's, or all raise."""

from __future__ import annotations

from pathlib import Path

import pytest
from rightness import assert_right
from worlds import mpirun

pytest.importorskip("mxnet")
pytestmark = [pytest.mark.mxnet, pytest.mark.timeout(150)]

PROGRAM = str(Path(__file__).with_name("loaded_states.py"))
PROGRAMS = ["missing", "missing_at_first", "only_first", "other_batches", "own_devices"]


@pytest.mark.parametrize(
    ("ranks", "groups", "programs"),
    [
        pytest.param(2, 1, PROGRAMS, id="one group"),
        pytest.param(2, 2, [*PROGRAMS, "only_first_async"], id="groups of one"),
        pytest.param(4, 2, ["missing", "only_first"], id="groups of two", marks=pytest.mark.nightly),
    ],
)
def test_files_that_some_workers_lack(ranks: int, groups: int, programs: list[str], tmp_path: Path) -> None:
    settings = {"HYBRIDPS_GROUPS": str(groups), "HYBRIDPS_DEADLINE_SECONDS": "20"}
    done = mpirun(ranks, ["-m", "hybridps", PROGRAM, str(tmp_path), *programs], settings, timeout=140)
    assert_right(done, programs, ranks)
