"""`hybridps run --snapshots`: the same command again goes on from what the servers had."""

from __future__ import annotations

import json
import re
import shutil
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


def run(tmp_path: Path, folder: str, epochs: int) -> tuple[str, float]:
    """What the servers said, and the loss in the last epoch, of two groups at two servers."""
    words = ["run", "-n", "2", "--groups", "2", "-s", "2", "--algorithm", "elastic", "--tau", "1"]
    words += ["--snapshots", str(tmp_path / folder), "--snapshot-seconds", "0.2", "--run", str(tmp_path / "run")]
    words += ["--set", "chunk_bytes=1024", "--", "python", SCRIPT, "0"]
    more = environment({"COMPARE_SEED": "0", "DIGITS_EPOCHS": str(epochs)})
    done = subprocess.run(
        [sys.executable, "-m", "hybridps", *words], env=more, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    shutil.rmtree(tmp_path / "run")
    return done.stderr, summary["loss"]


def test_the_same_command_goes_on_from_the_last_snapshot(tmp_path: Path) -> None:
    _, first_loss = run(tmp_path, "other", 1)
    _, loss = run(tmp_path, "snapshots", 5)
    assert loss < first_loss / 2
    said, again = run(tmp_path, "snapshots", 1)
    assert sorted(BACK.findall(said)) == [(str(server), only_job(str(tmp_path / "snapshots"))) for server in range(2)]
    assert again < first_loss / 2
