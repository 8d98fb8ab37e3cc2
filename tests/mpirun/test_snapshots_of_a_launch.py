"""`hybridps run --snapshots`: the same command again goes on from what the servers had."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from worlds import environment

from hybridps.ps.server.snapshots import only_job

pytest.importorskip("sklearn")
pytestmark = pytest.mark.timeout(120)

SCRIPT = str(Path(__file__).with_name("digits.py"))
BACK = re.compile(r"\[server (\d)\] job '(.*)' starts from its snapshot of ")


def run(tmp_path: Path, name: str, epochs: int) -> tuple[str, list[float]]:
    """What the servers said, and the accuracies after each epoch, of two groups at two servers."""
    words = ["run", "-n", "2", "--groups", "2", "-s", "2", "--algorithm", "elastic", "--tau", "1"]
    words += ["--snapshots", str(tmp_path / "snapshots"), "--snapshot-seconds", "0.05", "--run", str(tmp_path / name)]
    words += ["--set", "chunk_bytes=1024", "--", "python", SCRIPT, "0"]
    more = environment({"COMPARE_SEED": "0", "DIGITS_EPOCHS": str(epochs)})
    done = subprocess.run(
        [sys.executable, "-m", "hybridps", *words], env=more, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    points = json.loads((tmp_path / name / "summary.json").read_text())["points"]
    return done.stderr, [point["accuracy"] for point in points if point["epoch"]]


def test_the_same_command_goes_on_from_the_last_snapshot(tmp_path: Path) -> None:
    said, accuracies = run(tmp_path, "first", 40)
    assert not BACK.findall(said)
    assert os.listdir(tmp_path / "snapshots")
    said, again = run(tmp_path, "second", 1)
    assert sorted(BACK.findall(said)) == [(str(server), only_job(str(tmp_path / "snapshots"))) for server in range(2)]
    assert again[0] > accuracies[0]
    assert again[0] > accuracies[-1] - 0.02
