"""Programs that are right run to their end: alone, on two workers, in two groups with a server."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from own_servers import dist_sync
from rightness import assert_right
from worlds import environment, mpirun

pytest.importorskip("mxnet")
pytestmark = [pytest.mark.mxnet, pytest.mark.timeout(170)]

PROGRAMS = str(Path(__file__).with_name("programs.py"))
QUICK = [
    "each_sum_is_read",
    "one_worker_reads",
    "one_worker_reads_rows",
    "one_worker_reads_between_two_stores",
    "frozen_and_thawed",
    "lars_in_module",
    "keys_without_elements",
    "two_sets_of_keys",
    "a_gradient_needs_an_earlier_sum",
    "initial_values_are_read_at_once",
    "infinite_gradients_scale_the_loss_down",
]
IMPOSSIBLE_UNDER_DIST_SYNC = {
    "one_worker_reads_rows",  # a server's result for rows depends on its earlier keys
    "one_worker_reads_between_two_stores",  # a process may have only one such store
    "keys_without_elements",  # MXNet's server ends
}
WORLDS = {
    "alone": (1, {}),
    "two": (2, {}),
    "groups": (2, {"HYBRIDPS_GROUPS": "2"}),
    "groups of two": (4, {"HYBRIDPS_GROUPS": "2"}),
    "groups of two and one": (3, {"HYBRIDPS_GROUPS": "2"}),
    "elastic": (2, {"HYBRIDPS_GROUPS": "2", "HYBRIDPS_TAU": "2", "STORE": "dist_hybridps_elastic"}),
}
SMALL = {"HYBRIDPS_CHUNK_BYTES": "1024", "HYBRIDPS_BUCKET_BYTES": "2048", "HYBRIDPS_DEADLINE_SECONDS": "40"}


def run(programs: list[str], world: str, **extra: str) -> subprocess.CompletedProcess[str]:
    ranks, given = WORLDS[world]
    arguments, settings = ["-m", "hybridps", PROGRAMS, *programs], given | extra
    if world == "alone":
        whole = [sys.executable, *arguments]
        done = subprocess.run(
            whole, env=environment(settings), capture_output=True, text=True, timeout=160, check=False
        )
    else:
        done = mpirun(ranks, arguments, settings, timeout=160)
    assert_right(done, programs, ranks)
    return done


@pytest.mark.parametrize(
    "world",
    [
        *(pytest.param(name, marks=pytest.mark.nightly) for name in ("alone", "two", "groups", "groups of two")),
        "groups of two and one",
    ],
)
def test_right_programs_run(world: str) -> None:
    done = run(QUICK, world, **SMALL)
    assert done.stderr.count("the gradient of key '0' has NaN or Inf in step 1") == 1, done.stderr


@pytest.mark.nightly
@pytest.mark.parametrize("program", sorted({*QUICK} - IMPOSSIBLE_UNDER_DIST_SYNC))
def test_the_programs_are_right_under_dist_sync_too(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORE", "dist_sync")
    for worker, printed in enumerate(dist_sync(2, [PROGRAMS, program])):
        assert f"{program} is right" in printed, f"worker {worker}: {printed}"


@pytest.mark.nightly
@pytest.mark.parametrize("world", WORLDS)
def test_ten_thousand_tiny_keys(world: str) -> None:
    run(["many_tiny_keys"], world)


def test_a_thousand_tiny_keys_and_a_large_one() -> None:
    run(["many_tiny_keys", "one_large_key"], "groups", KEYS="1000", MEGABYTES="64")


@pytest.mark.nightly
@pytest.mark.parametrize("world", ["alone", "two"])
def test_one_large_key(world: str) -> None:
    run(["one_large_key"], world, MEGABYTES="256" if world == "alone" else "64")


@pytest.mark.nightly
@pytest.mark.parametrize("world", ["alone", "two", "groups"])
def test_one_key_of_a_gigabyte(world: str) -> None:
    run(["one_large_key"], world, MEGABYTES="1024")


@pytest.mark.parametrize(
    "world", [*(pytest.param(name, marks=pytest.mark.nightly) for name in ("alone", "two", "groups")), "elastic"]
)
def test_stores_that_are_not_used_any_more_leave_nothing_behind(world: str) -> None:
    print(run(["many_trainers"], world).stdout)


def test_refuse_ends_the_job() -> None:
    arguments = ["-m", "hybridps", PROGRAMS, "infinite_gradients_scale_the_loss_down"]
    done = mpirun(2, arguments, {"HYBRIDPS_CHECK_FINITE": "refuse"}, timeout=60)
    assert done.returncode != 0
    assert "worker 1: the gradient of key '0' has NaN or Inf in step 1" in done.stderr


DIFFERENCES = {
    "shape": r"key '0' has the shape \((4|3),\).* instead of \((3|4),\)",
    "dtype": "key '0' .*float.* instead of .*float|float.* instead of float.*, from key '0' on",
    "more": "key '2'",
}


@pytest.mark.parametrize(
    ("algorithm", "how"),
    [("sync", "more"), ("elastic", "shape")]
    + [
        pytest.param(name, how, marks=pytest.mark.nightly)
        for name, how in (("sync", "shape"), ("sync", "dtype"), ("elastic", "dtype"), ("elastic", "more"))
    ],
)
def test_groups_with_different_networks_end_with_an_error_that_names_the_key(algorithm: str, how: str) -> None:
    launcher = [sys.executable, "-m", "hybridps", "run", "-n", "2", "--groups", "2", "--algorithm", algorithm]
    done = subprocess.run(
        [*launcher, "--", "python", str(Path(PROGRAMS).with_name("differs.py"))],
        env=environment({"DIFFERS": how, "HYBRIDPS_DEADLINE_SECONDS": "60"}),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("hybridps: error:") == 1, done.stderr
    assert re.search(DIFFERENCES[how], done.stderr), done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("how", ["shape", *(pytest.param(how, marks=pytest.mark.nightly) for how in ("dtype", "more"))])
def test_workers_with_different_networks_end_with_an_error_that_names_the_key(how: str) -> None:
    arguments = ["-m", "hybridps", str(Path(PROGRAMS).with_name("differs.py"))]
    done = mpirun(2, arguments, {"DIFFERS": how, "HYBRIDPS_DEADLINE_SECONDS": "60"}, timeout=60)
    assert done.returncode != 0, done.stderr
    assert done.stderr.count("hybridps: error:") == 1, done.stderr
    assert re.search(DIFFERENCES[how], done.stderr), done.stderr
