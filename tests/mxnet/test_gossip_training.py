"""An unchanged Gluon script whose store gossips, with real MXNet."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from worlds import environment, mpirun

pytest.importorskip("mxnet")
pytestmark = [pytest.mark.mxnet, pytest.mark.timeout(300)]

SCRIPT = str(Path(__file__).with_name("gossip_steps.py"))
NEAR = 0.025
"""Groups that average end nearer to each other than this part of their weights' norm."""


def results(folder: Path, workers: int) -> list[dict[str, np.ndarray]]:
    found = []
    for rank in range(workers):
        with np.load(folder / f"{rank}.npz") as file:
            found.append({name: file[name] for name in file.files})
    return found


def train(folder: Path, workers: int, store: str, **settings: str) -> list[dict[str, np.ndarray]]:
    folder.mkdir()
    extra = {f"HYBRIDPS_{name.upper()}": text for name, text in settings.items()}
    run = {"HYBRIDPS_RUN_FOLDER": str(folder / "run"), **extra}
    done = mpirun(workers, ["-m", "hybridps", SCRIPT, store, "120", str(folder)], run, timeout=140)
    assert done.returncode == 0, done.stdout + done.stderr
    assert ", 0 servers" in done.stderr
    return results(folder, workers)


def spread(found: list[dict[str, np.ndarray]]) -> float:
    return float(max(np.linalg.norm(one["weights"] - found[0]["weights"]) for one in found))


def check(found: list[dict[str, np.ndarray]], sizes: list[int]) -> None:
    """Workers of a group are equal, pull gives the own weights, and the loss falls."""
    leaders = np.repeat(np.cumsum([0, *sizes[:-1]]), sizes)
    for one, leader in zip(found, leaders, strict=True):
        assert one["weights"].tobytes() == found[leader]["weights"].tobytes()
        np.testing.assert_array_equal(one["pulled"], one["weights"][: one["pulled"].size])
        assert one["losses"][-20:].mean() < one["losses"][:20].mean()


@pytest.mark.parametrize(
    ("name", "each"),
    [
        ("gossip", 1),
        pytest.param("gossip", 2, marks=pytest.mark.nightly),
        pytest.param("gosgd", 1, marks=pytest.mark.nightly),
        pytest.param("sgp", 1, marks=pytest.mark.nightly),
    ],
)
def test_groups_come_together(tmp_path: Path, name: str, each: int) -> None:
    store = f"dist_hybridps_{name}"
    together = train(tmp_path / "together", 2 * each, store, groups="2", trigger="every:1")
    check(together, [each, each])
    assert name in str(together[0]["type"])
    assert spread(together) < NEAR * np.linalg.norm(together[0]["weights"])


@pytest.mark.nightly
def test_groups_that_do_not_average_stay_apart(tmp_path: Path) -> None:
    apart = train(tmp_path / "apart", 2, "dist_hybridps_gossip", groups="2", trigger="every:1000")
    assert spread(apart) > 5 * NEAR * np.linalg.norm(apart[0]["weights"])


@pytest.mark.nightly
def test_each_worker_is_a_group_of_its_own_by_default(tmp_path: Path) -> None:
    found = train(tmp_path / "out", 3, "dist_hybridps_gossip", tau="2")
    check(found, [1, 1, 1])


def test_worlds_of_their_own(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hybridps.cli", "run", "-n", "2", "--algorithm", "gossip"]
    command += ["--set", "trigger=change:0.01", "--", "python", SCRIPT, "dist_hybridps_gossip", "120", str(tmp_path)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    check(results(tmp_path, 2), [1, 1])


def test_all_ranks_know_who_is_silent_and_a_process_may_have_several_stores_that_gossip(tmp_path: Path) -> None:
    program = str(Path(__file__).with_name("gossip_stores.py"))
    done = mpirun(3, ["-m", "hybridps", program, str(tmp_path)], {"HYBRIDPS_GROUPS": "2"}, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in range(3):
        said = (tmp_path / f"{rank}.txt").read_text()
        assert "'sync' needs a server, and this job of 2 groups was started without one, to gossip" in said


def test_a_type_that_begins_with_dist_makes_groups_of_one_worker(tmp_path: Path) -> None:
    program = str(Path(__file__).with_name("own_groups.py"))
    done = mpirun(2, ["-m", "hybridps", program, str(tmp_path)], {}, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [(tmp_path / f"{rank}.txt").read_text() for rank in range(2)] == ["dist_hybridps_sync (1, 1)"] * 2
