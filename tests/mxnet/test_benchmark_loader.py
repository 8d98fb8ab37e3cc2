"""benchmarks.loader: what it makes of its rounds, and a short run of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mxnet")
pytestmark = pytest.mark.mxnet

ROOT = Path(__file__).parents[2]
WAYS = ["folder", "RecordIO", "ImageRecordIter", "network", "network + folder", "network + RecordIO"]
WAYS += ["network + ImageRecordIter"]


def test_ratios_are_of_the_same_round(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks.loader import make_results

    rounds = {
        "folder": [(30.0, 8.0, 0.0), (20.0, 8.0, 0.5), (90.0, 8.0, 0.0)],
        "ImageRecordIter": [(10.0, 2.0, 0.0), (10.0, 4.0, 0.0), (30.0, 4.0, 0.0)],
        "network": [(4.0, 1.0, 0.0), (5.0, 1.0, 0.0), (4.0, 1.0, 0.0)],
        "network + folder": [(3.0, 0.5, 0.0), (5.0, 1.0, 0.0), (2.0, 0.5, 0.0)],
    }
    results = {result["way"]: result for result in make_results(rounds)}
    assert [results[way]["images_per_second_ratio"] for way in rounds] == [3.0, 1.0, 1.0, 0.75]
    assert [results[way]["images_per_cpu_second_ratio"] for way in rounds] == [2.0, 1.0, 1.0, 0.5]
    assert results["folder"]["images_per_second"] == 30.0
    assert results["folder"]["disturbance"] == [0.0, 0.5, 0.0]


@pytest.mark.nightly
@pytest.mark.timeout(200)
def test_a_short_run(folder, tmp_path):
    options = ["--network", "mobilenet0.25", "--image-size", "32", "--batch-size", "4", "--images", "8"]
    options += ["--steps", "1", "--rounds", "1", "--json", str(tmp_path / "loader.json")]
    command = [sys.executable, "-m", "benchmarks.loader", "--data", str(folder), *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "loader.json").read_text())
    assert [result["way"] for result in results] == WAYS
    assert all(result["images_per_second"] > 0 for result in results)


def test_a_folder_without_images_is_refused(tmp_path):
    command = [sys.executable, "-m", "benchmarks.loader", "--data", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (
        2,
        f"benchmarks.loader: {tmp_path} has no folder train/",
    )
