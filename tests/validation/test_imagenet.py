"""The ImageNet example on real ImageNet photographs, one for each of the 1,000 classes, where they are at hand."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from worlds import environment

pytest.importorskip("mxnet")
ROOT = Path(__file__).parents[2]
ARCHIVE = ROOT.parent / "shared" / "data" / "imagenet-1k-one-per-class.tar"
pytestmark = [
    pytest.mark.mxnet,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not ARCHIVE.exists(), reason=f"{ARCHIVE.name} is not here"),
]
EXAMPLE = ROOT / "examples" / "imagenet"
SMALL = ["--network", "resnet18_v1", "--image-size", "64", "--batch-size", "8", "--max-batches", "3", "--lr", "0.01"]


def run(*arguments: str) -> str:
    done = subprocess.run(arguments, env=environment(), capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def train(folder: Path, data: Path, *more: str) -> str:
    launcher = [sys.executable, "-m", "hybridps", "run", "-n", "2", "--algorithm", "sync", "--run", str(folder)]
    return run(*launcher, "--", sys.executable, str(EXAMPLE / "train.py"), "--data", str(data), *SMALL, *more)


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return folder / "imagenet"


@pytest.fixture(scope="module")
def records(images: Path, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("records")
    run(sys.executable, str(EXAMPLE / "make_recordio.py"), str(images), str(folder))
    return folder


def assert_trained(folder: Path, epochs: int) -> None:
    settings = json.loads((folder / "config.json").read_text())
    assert settings["classes"] == 1000
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["epochs"], summary["workers"], summary["finished"]) == (epochs, 2, [0, 1])
    assert summary["bytes_within_groups"] > 0


def test_two_workers_train_on_1000_classes_and_resume(images: Path, tmp_path: Path) -> None:
    train(tmp_path / "run", images, "--epochs", "1")
    assert "resumed from" in train(tmp_path / "run", images, "--epochs", "2", "--resume")
    assert_trained(tmp_path / "run", epochs=2)


def test_two_workers_train_from_records(records: Path, tmp_path: Path) -> None:
    train(tmp_path / "run", records, "--epochs", "1")
    assert_trained(tmp_path / "run", epochs=1)
