"""A gradient that a store sums in place in some calls stays as it is in those that sum it elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest
from worlds import mpirun

pytest.importorskip("mxnet")
pytestmark = [pytest.mark.mxnet, pytest.mark.timeout(90)]

SCRIPT = str(Path(__file__).with_name("gradients_that_stay.py"))


LIKE_LOCAL = ["pushed", "summed_elsewhere", "both", "both_from_the_other_side"]
STORES = [("local", 1), ("dist_hybridps_sync", 2)]


@pytest.mark.parametrize(
    ("program", "store", "ranks"),
    [*((program, *store) for program in LIKE_LOCAL for store in STORES), ("updated", "dist_hybridps_sync", 2)],
)
def test_a_gradient_stays_unless_its_sum_replaces_it(program: str, store: str, ranks: int) -> None:
    extra = {"STORE": store, "HYBRIDPS_DEADLINE_SECONDS": "30"}
    done = mpirun(ranks, ["-m", "hybridps", SCRIPT, program], extra, timeout=80)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(f"{program} is right") == ranks
