"""Files of optimizer states that some workers do not have: all continue from the first worker's, or all raise."""

from __future__ import annotations

from pathlib import Path

import pytest
from worlds import mpirun

pytest.importorskip("mxnet")
pytestmark = [pytest.mark.mxnet, pytest.mark.timeout(150)]

PROGRAM = str(Path(__file__).with_name("loaded_states.py"))


@pytest.mark.parametrize(
    ("program", "ranks", "groups", "store"),
    [
        ("missing", 2, 2, "dist_hybridps_sync"),
        ("missing", 2, 1, "dist_hybridps_sync"),
        pytest.param("missing", 4, 2, "dist_hybridps_sync", marks=pytest.mark.nightly),
        ("missing_at_first", 2, 2, "dist_hybridps_sync"),
        ("missing_at_first", 2, 1, "dist_hybridps_sync"),
        ("only_first", 2, 2, "dist_hybridps_sync"),
        ("only_first", 2, 1, "dist_hybridps_sync"),
        ("only_first", 2, 2, "dist_hybridps_async"),
        ("other_batches", 2, 1, "dist_hybridps_sync"),
        ("other_batches", 2, 2, "dist_hybridps_sync"),
        ("own_devices", 2, 1, "dist_hybridps_sync"),
        ("own_devices", 2, 2, "dist_hybridps_sync"),
        pytest.param("only_first", 4, 2, "dist_hybridps_sync", marks=pytest.mark.nightly),
    ],
)
def test_files_that_some_workers_lack(program: str, ranks: int, groups: int, store: str, tmp_path: Path) -> None:
    settings = {"HYBRIDPS_GROUPS": str(groups), "HYBRIDPS_DEADLINE_SECONDS": "20", "STORE": store}
    done = mpirun(ranks, ["-m", "hybridps", PROGRAM, program, str(tmp_path)], settings, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(f"{program} is right") == ranks
