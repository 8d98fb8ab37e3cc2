"""Groups that train in step: one that dies comes back alone, and gets the state of another one."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from worlds import environment

pytestmark = pytest.mark.timeout(90)

SCRIPT = Path(__file__).with_name("hand_over_ranks.py")
TWO_GROUPS = ("-n", "2", "--groups", "2")
END = re.compile(r"worker (\d+) in life (\d+) ends at epoch (\d+) with (\w+)")


def train(folder: Path, what: str, *options: str) -> subprocess.CompletedProcess[str]:
    launcher = "import os, sys; os.environ['LAUNCHER_PID'] = str(os.getpid()); from hybridps.cli import main; main()"
    words = [sys.executable, "-c", launcher, "run", "--restarts", "3", *options]
    words += ["--", "python", str(SCRIPT), str(folder), what]
    variables = {**environment(), "HYBRIDPS_CHUNK_BYTES": "65536"}  # so that tables have parts at all servers
    return subprocess.run(words, env=variables, capture_output=True, text=True, timeout=80)


def ends(text: str) -> dict[int, tuple[int, int, str]]:
    """By worker: the life and the epoch in which it ended, and its weights."""
    return {int(worker): (int(life), int(epoch), digest) for worker, life, epoch, digest in END.findall(text)}


@pytest.mark.parametrize(
    ("what", "workers", "options"),
    [
        ("late", 4, ("-s", "3")),
        ("news", 2, ("-s", "2")),
        ("server", 2, ()),
        pytest.param("back", 4, ("-s", "3"), marks=pytest.mark.nightly),
        pytest.param("server", 4, ("-s", "2"), marks=pytest.mark.nightly),
    ],
)
def test_a_group_comes_back_alone(tmp_path: Path, what: str, workers: int, options: tuple[str, ...]) -> None:
    done = train(tmp_path, what, "-n", str(workers), "--groups", "2", *options)
    assert done.returncode == 0, done.stderr
    assert "all groups are started again" not in done.stderr
    found = ends(done.stdout)
    half = workers // 2
    assert {worker: (life, epoch) for worker, (life, epoch, _) in found.items()} == {
        worker: (worker // half, 6) for worker in range(workers)
    }
    assert len({digest for _, _, digest in found.values()}) == 1
    assert len(re.findall("came in at epoch [345]", done.stdout)) == half
    if what in ("server", "news"):
        assert (tmp_path / "killed").exists()


@pytest.mark.parametrize("what", ["all", "early"])
def test_all_groups_begin_anew_if_nobody_can_hand_over(tmp_path: Path, what: str) -> None:
    done = train(tmp_path, what, *TWO_GROUPS)
    assert done.returncode == 0, done.stderr
    assert "all groups are started again" in done.stderr
    found = ends(done.stdout)
    assert found.keys() == {0, 1}
    assert len({(epoch, digest) for _, epoch, digest in found.values()}) == 1
    assert "came in" not in done.stdout


def test_a_group_whose_others_have_finished_meanwhile_ends_in_good_order(tmp_path: Path) -> None:
    done = train(tmp_path, "over", *TWO_GROUPS)
    assert done.returncode == 0, done.stderr
    assert ends(done.stdout).keys() == {0}


def test_a_group_that_dies_instead_of_handing_over_does_no_harm(tmp_path: Path) -> None:
    done = train(tmp_path, "giver", "-n", "3", "--groups", "3")
    assert done.returncode == 0, done.stderr
    assert "all groups are started again" not in done.stderr
    assert "is incomplete: that group has died meanwhile" in done.stderr
    found = ends(done.stdout)
    assert {worker: life for worker, (life, _, _) in found.items()} == {0: 1, 1: 2, 2: 0}
    assert len({(epoch, digest) for _, epoch, digest in found.values()}) == 1
