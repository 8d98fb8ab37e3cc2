"""Row-sparse gradients and weights, in one group and in several, against MXNet's `local`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from rightness import assert_right
from worlds import mpirun

pytest.importorskip("mxnet")
pytestmark = [pytest.mark.mxnet, pytest.mark.timeout(200)]

USES = str(Path(__file__).with_name("sparse_uses.py"))
RIGHT = [
    "updates",
    "sums",
    "pulls",
    "changing",
    "beside",
    "gluon_gradients",
    "gluon_weights",
    "gluon_devices",
    "order",
    "module",
    "refused",
]
SMALL = {"HYBRIDPS_CHUNK_BYTES": "1024", "HYBRIDPS_BUCKET_BYTES": "2048", "HYBRIDPS_DEADLINE_SECONDS": "40"}
WORLDS = {
    "one": (1, {}),
    "two": (2, {}),
    "groups": (2, {"HYBRIDPS_GROUPS": "2"}),
    "three": (3, {"HYBRIDPS_GROUPS": "3"}),
    "groups of two": (4, {"HYBRIDPS_GROUPS": "2"}),
}


NIGHTLY = {"one", "two", "three", "groups of two"}
"""Worlds that take long, and one that "two" has in it."""


@pytest.mark.parametrize(
    "world", [pytest.param(world, marks=pytest.mark.nightly if world in NIGHTLY else ()) for world in WORLDS]
)
def test_as_local(world: str) -> None:
    ranks, given = WORLDS[world]
    uses = [*RIGHT, "rows_after_dense" if "HYBRIDPS_GROUPS" in given else "memory"]
    done = mpirun(ranks, ["-m", "hybridps", USES, *uses], SMALL | given, timeout=180)
    assert_right(done, uses, ranks)


def test_memory_in_groups() -> None:
    """With chunks of the usual size: the many rows would be very many small ones."""
    done = mpirun(2, ["-m", "hybridps", USES, "memory"], {"HYBRIDPS_GROUPS": "2"}, timeout=60)
    assert_right(done, ["memory"], 2)


@pytest.mark.parametrize(
    ("use", "said"),
    [
        ("one_pushes_dense", "the sum of key 'd'|the layout of the rows of key 'd'"),
        ("a_row_too_many", "the gradient of key 't' has rows 1 to 6; the array has 6"),
    ],
)
def test_what_one_worker_does_wrong_ends_all(use: str, said: str) -> None:
    done = mpirun(2, ["-m", "hybridps", USES, use], SMALL, timeout=60)
    assert done.returncode != 0
    assert re.search(said, done.stderr), done.stderr
    assert "is right" not in done.stdout
