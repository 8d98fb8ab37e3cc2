"""`hybridps oracle calibrate` and `compare` on real, small trainings. Never how near the prediction comes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from worlds import environment

pytest.importorskip("mxnet")
pytestmark = [pytest.mark.mxnet, pytest.mark.timeout(240)]

EXAMPLE = Path(__file__).parents[2] / "examples" / "imagenet"
TRAIN = [sys.executable, str(EXAMPLE / "train.py"), "--data", "synthetic", "--image-size", "8", "--classes", "10"]
DIGITS = [*TRAIN, "--network", "digits", "--synthetic-images", "4096"]


def hybridps(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hybridps.cli", *words]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=200, check=False)


@pytest.fixture(scope="module", params=["2", pytest.param("1,2", marks=pytest.mark.nightly)])
def calibrated(request, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("calibration")
    small = ["--copies", request.param, "--batch-sizes", "4,512", "--batches", "2", "--layouts", "2x1,2x2"]
    models = ["--models", str(EXAMPLE / "models.py")]
    done = hybridps("oracle", "calibrate", "--out", str(folder), *small, *models, "--", *DIGITS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "sum, 2 workers in 2 groups" in done.stdout
    return folder


def test_what_is_measured(calibrated: Path, request) -> None:
    found = json.loads((calibrated / "calibration.json").read_text())
    copies = request.node.callspec.params["calibrated"].split(",")
    assert [steps["copies"] for steps in found["steps"]] == [int(number) for number in copies]
    assert all(steps["step"]["seconds_per_unit"] > 0 for steps in found["steps"])
    _, link = found["communications"]
    assert (link["workers"], link["groups"]) == (2, 2)
    for name in ("sum", "average"):
        assert link[name]["cost"]["seconds_per_unit"] > 0
        assert 0 <= link[name]["loss"] <= 1
    timed = [layer for layer in found["layers"]["network"]["layers"] if layer["kind"] in ("CONV", "FC", "BNORM")]
    assert len(timed) == 3 + 3 + 1
    assert all(layer["forward_seconds"] > 0 and layer["backward_seconds"] > 0 for layer in timed)
    trained = sum((9 * 3 * 16, 9 * 16 * 32, 9 * 32 * 64, 2 * 7 * 16, 10 * (4 * 64 + 1)))
    assert found["layers"]["weight_items"] == trained + 2 * 7 * 16  # running mean and variance
    assert found["copy_bytes_per_second"] > 0


def test_predictions_use_what_was_measured(calibrated: Path) -> None:
    inputs = ["--network", str(calibrated / "network.json"), "--machine", str(calibrated / "machine.json")]
    wanted = ["--strategy", "data", "--pes", "2", "--batch", "32", "--format", "json"]
    done = hybridps("oracle", "predict", *inputs, *wanted)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)
    found = json.loads((calibrated / "calibration.json").read_text())
    cost = found["communications"][0]["sum"]["cost"]
    network = found["layers"]["network"]
    trained = sum((9 * 3 * 16, 9 * 16 * 32, 9 * 32 * 64, 2 * 7 * 16, 10 * (4 * 64 + 1)))
    seconds = max(0.0, cost["start_seconds"]) + 4 * trained * cost["seconds_per_unit"]
    assert row["communication_seconds_per_epoch"] == pytest.approx(network["samples"] / 32 * seconds)


@pytest.mark.nightly
@pytest.mark.parametrize("algorithm", ["sync", "elastic"])
def test_a_run_is_compared_phase_by_phase(calibrated: Path, tmp_path: Path, algorithm: str) -> None:
    options = ["-n", "2", "--groups", "2", "--algorithm", algorithm, "--tau", "2", "--run", str(tmp_path)]
    trained = hybridps("run", *options, "--", *DIGITS, "--batch-size", "16", "--max-batches", "6", "--epochs", "3")
    assert trained.returncode == 0, trained.stdout + trained.stderr
    done = hybridps("oracle", "compare", str(tmp_path), "--calibration", str(calibrated), "--format", "json")
    assert done.returncode == 0, done.stderr
    rows = {row["phase"]: row for row in json.loads(done.stdout)}
    assert set(rows) == {"step", "compute", "loader", "communication", "exposed"}
    for kind in ("predicted_seconds", "measured_seconds"):
        assert rows["step"][kind] == pytest.approx(rows["compute"][kind] + rows["exposed"][kind])
        assert rows["step"][kind] > 0
    step = rows["step"]
    error = abs(step["predicted_seconds"] - step["measured_seconds"]) / step["measured_seconds"]
    assert step["accuracy"] == pytest.approx(1 - error)
    assert (
        "2 workers, 2 groups" in hybridps("oracle", "compare", str(tmp_path), "--calibration", str(calibrated)).stdout
    )


def test_mistakes_are_named(calibrated: Path, tmp_path: Path) -> None:
    wrong = hybridps("oracle", "calibrate", "--layouts", "2x4", "--", *DIGITS)
    assert (wrong.returncode, "'2x4': expected workers x groups" in wrong.stderr) == (2, True)
    failing = [*DIGITS, "--network", "none"]
    failed = hybridps("oracle", "calibrate", "--out", str(tmp_path), "--copies", "1", "--", *failing)
    assert (failed.returncode, "--network none: expected one of" in failed.stderr) == (2, True)
