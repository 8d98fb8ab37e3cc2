"""A gradient that a store sums in place in some calls stays as it is in those that sum it elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest
from rightness import assert_right
from worlds import mpirun

pytest.importorskip("mxnet")
pytestmark = [pytest.mark.mxnet, pytest.mark.timeout(150)]

SCRIPT = str(Path(__file__).with_name("gradients_that_stay.py"))
LIKE_LOCAL = ["pushed", "summed_elsewhere", "both", "both_from_the_other_side"]


@pytest.mark.parametrize(
    ("store", "ranks", "programs"), [("local", 1, LIKE_LOCAL), ("dist_hybridps_sync", 2, [*LIKE_LOCAL, "updated"])]
)
def test_a_gradient_stays_unless_its_sum_replaces_it(store: str, ranks: int, programs: list[str]) -> None:
    extra = {"STORE": store, "HYBRIDPS_DEADLINE_SECONDS": "30"}
    done = mpirun(ranks, ["-m", "hybridps", SCRIPT, *programs], extra, timeout=140)
    assert_right(done, programs, ranks)
