"""What scripts ask servers for beside keys: commands, a profile, which nodes are dead."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from rightness import assert_right
from worlds import environment, mpirun

pytest.importorskip("mxnet")
pytestmark = [pytest.mark.mxnet, pytest.mark.timeout(150)]

PROGRAM = str(Path(__file__).with_name("servers.py"))
RIGHT = ["handles", "commands", "profile", "profile_by_commands", "profile_wrongly", "profile_of_the_worker"]
RIGHT += ["profile_amid_steps", "profile_without_dump"]


@pytest.mark.parametrize("groups", [pytest.param("1", marks=pytest.mark.nightly), "2"])
def test_commands_and_profiles(groups: str, tmp_path: Path) -> None:
    settings = {"HYBRIDPS_GROUPS": groups, "HYBRIDPS_DEADLINE_SECONDS": "60", "FOLDER": str(tmp_path)}
    done = mpirun(2, ["-m", "hybridps", PROGRAM, *RIGHT], settings, timeout=120)
    assert_right(done, RIGHT, 2)
    assert "hybridps: the command 77 ('to whom it may concern') is unknown to servers" in done.stderr
    written = sorted(path.name for path in tmp_path.glob("rank*.json"))
    if groups == "1":
        assert written == []
        assert done.stderr.count("there are no servers of hybridps in this job: none is profiled") == 1
        return
    assert written == ["rank0_amid.json", "rank0_commands.json", "rank0_late.json", "rank0_server.json"]
    late = json.loads((tmp_path / "rank0_late.json").read_text())["traceEvents"]
    assert sum(each["name"] == "round" for each in late) >= 5


def test_a_profile_that_cannot_be_written_at_the_end(tmp_path: Path) -> None:
    settings = {"HYBRIDPS_GROUPS": "2", "FOLDER": str(tmp_path)}
    done = mpirun(2, ["-m", "hybridps", PROGRAM, "profile_to_nowhere"], settings, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "cannot be written to" in done.stderr
    assert "give mx.profiler.set_config another filename" in done.stderr


@pytest.mark.nightly
def test_a_dead_node_of_a_rack() -> None:
    launch = ["-m", "hybridps", "run", "-n", "4", "--groups", "4", "--racks", "2", "--set", "lost_seconds=2"]
    done = subprocess.run(
        [sys.executable, *launch, "--", "python", PROGRAM, "a_dead_node_of_a_rack"],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 3, done.stdout + done.stderr
    assert done.stdout.count("a_dead_node_of_a_rack is right") == 3, done.stdout + done.stderr


@pytest.mark.parametrize(("workers", "algorithm"), [pytest.param(2, "async", marks=pytest.mark.nightly), (4, "sync")])
def test_dead_nodes(workers: int, algorithm: str) -> None:
    launch = ["-m", "hybridps", "run", "-n", str(workers), "--groups", "2", "--algorithm", algorithm]
    done = subprocess.run(
        [sys.executable, *launch, "--set", "lost_seconds=2", "--", "python", PROGRAM, "dead_nodes"],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 3, done.stdout + done.stderr
    assert done.stdout.count("dead_nodes is right") == workers // 2, done.stdout + done.stderr
