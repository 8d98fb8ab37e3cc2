"""The checks of `hybridps.kvstore.conformance`: what MXNet's own stores do, ours do too."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from own_servers import dist_sync
from worlds import environment, mpirun

pytest.importorskip("mxnet")
pytestmark = [pytest.mark.mxnet, pytest.mark.timeout(170)]

CHECKS = ["-m", "hybridps.kvstore.conformance"]
WORLDS = {
    "two": (2, {}),
    "groups": (2, {"HYBRIDPS_GROUPS": "2"}),
    "groups of two": (4, {"HYBRIDPS_GROUPS": "2"}),
}
SMALL = {"HYBRIDPS_CHUNK_BYTES": "1024", "HYBRIDPS_BUCKET_BYTES": "2048", "HYBRIDPS_DEADLINE_SECONDS": "40"}


def run(arguments: list[str], settings: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        env=environment(settings),
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_mxnets_local_store_conforms() -> None:
    assert run([*CHECKS, "local"], {}) == "no difference\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("nosuch", "no type 'nosuch'"),
        ("dist_hybridps_nosuch", "'dist_hybridps_nosuch' is unknown"),
        ("local dtype", "no check 'dtype'"),
    ],
)
def test_names_that_do_not_exist_are_refused(words: str, told: str) -> None:
    """MXNet itself would make a `local` store of any name."""
    command = [sys.executable, *CHECKS, *words.split()]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert told in done.stderr


def test_other_names_of_types_are_known() -> None:
    assert run([*CHECKS, "dist_hybridps_dist-esgd", "keys_may_be_words"], SMALL) == "no difference\n"


@pytest.mark.parametrize("store", ["dist_hybridps_sync", "dist_hybridps_elastic"])
def test_ours_conform_alone(store: str) -> None:
    assert run([*CHECKS, store], SMALL) == "no difference\n"


@pytest.mark.parametrize(
    "world", ["groups", *(pytest.param(world, marks=pytest.mark.nightly) for world in ("two", "groups of two"))]
)
def test_ours_conform(world: str) -> None:
    ranks, given = WORLDS[world]
    done = mpirun(ranks, ["-m", "hybridps", *CHECKS, "dist_hybridps_sync"], SMALL | given, timeout=150)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("no difference") == ranks


@pytest.mark.nightly
@pytest.mark.parametrize("workers", [1, 2])
def test_mxnets_own_servers_conform(workers: int) -> None:
    for printed in dist_sync(workers, [*CHECKS, "dist_sync"], timeout=60):
        assert printed.splitlines()[-1] == "no difference"


def test_the_checks_that_mxnets_servers_are_not_put_through_are_in_the_docs() -> None:
    from hybridps.kvstore.conformance import NOT_DIST_SYNC

    text = (Path(__file__).parents[2] / "docs" / "kvstore.md").read_text()
    for name, reason in NOT_DIST_SYNC.items():
        assert f"| `{name}` | {reason} |" in text
