"""The ImageNet example: two workers that resume in the middle of an epoch."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from example_runs import EXAMPLE
from worlds import environment

mx = pytest.importorskip("mxnet")
pytestmark = [pytest.mark.mxnet, pytest.mark.nightly]

KEEPS_ALL = f"""
import sys
sys.path.insert(0, {str(EXAMPLE)!r})
import checkpoint
import train

checkpoint.prune = lambda *ignored: None
sys.exit(train.main(sys.argv[1:]))
"""


def train(script: Path, run: Path) -> str:
    command = [sys.executable, "-m", "hybridps", "run", "-n", "2", "--algorithm", "sync", "--run", str(run), "--"]
    command += [sys.executable, str(script), "--data", "digits", "--network", "digits", "--batch-size", "32"]
    command += ["--epochs", "2", "--lr", "0.1", "--lr-warmup-epochs", "1", "--checkpoint-steps", "10", "--resume"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def bits(folder: Path) -> dict[str, bytes]:
    with np.load(folder / "states.npz", allow_pickle=False) as states:
        found = {key: array.tobytes() for key, array in states.items()}
    weights = mx.nd.load(str(folder / "model.params"))
    return found | {key: array.asnumpy().tobytes() for key, array in weights.items()}


@pytest.mark.timeout(450)
def test_two_workers_resume_with_the_same_bits(tmp_path):
    pytest.importorskip("sklearn")
    script, cut = tmp_path / "script.py", "epoch-0001-step-000010"
    script.write_text(KEEPS_ALL)
    train(script, tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "parts")
    for path in (tmp_path / "parts" / "checkpoints").glob("epoch-*"):
        if path.name > cut:
            shutil.rmtree(path)
    assert f"checkpoints/{cut}" in train(script, tmp_path / "parts")
    whole, parts = (bits(tmp_path / run / "checkpoints" / "epoch-0002") for run in ("whole", "parts"))
    assert whole == parts
    again = train(script, tmp_path / "whole")
    assert again.count("epoch 2 of 2 is done: nothing is left to train") == 1
    assert "the KVStore of this script was given no weights" not in again
