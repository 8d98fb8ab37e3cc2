"""Graphs that are recorded before a store moves gradients or weights, and differentiated afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest
from rightness import assert_right
from worlds import mpirun

pytest.importorskip("mxnet")
pytestmark = [pytest.mark.mxnet, pytest.mark.timeout(200)]

SCRIPT = str(Path(__file__).with_name("recorded_graphs.py"))
PROGRAMS = ["actor_and_critic", "several_losses", "graph_that_is_kept"]
NEVER = {"HYBRIDPS_TAU": "1000000"}
"""The weights are moved at the first step, and never averaged."""


@pytest.mark.parametrize(
    ("store", "update", "ranks", "settings"),
    [
        pytest.param("dist_hybridps_sync", "trainer", 1, {}, id="one worker, the Trainer updates"),
        pytest.param("dist_hybridps_sync", "trainer", 2, {}, id="one group, the Trainer updates"),
        pytest.param("dist_hybridps_sync", "store", 2, {"HYBRIDPS_GROUPS": "2"}, id="the servers update"),
        pytest.param("dist_hybridps_elastic", "trainer", 2, NEVER | {"HYBRIDPS_GROUPS": "2"}, id="Elastic"),
    ],
)
def test_their_gradients_are_those_of_local(store: str, update: str, ranks: int, settings: dict[str, str]) -> None:
    extra = {"STORE": store, "UPDATE": update, "HYBRIDPS_DEADLINE_SECONDS": "40"} | settings
    done = mpirun(ranks, ["-m", "hybridps", SCRIPT, *PROGRAMS], extra, timeout=180)
    assert_right(done, PROGRAMS, ranks)
