"""Short trainings with the ImageNet example in this process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "imagenet"


def digits(example, run: Path, *options: object, epochs: int = 2, kvstore: str = "none") -> int:
    pytest.importorskip("sklearn")
    fixed = ["--data", "digits", "--network", "digits", "--batch-size", "32", "--lr", "0.1", "--lr-warmup-epochs", "1"]
    given = ["--kvstore", kvstore, "--epochs", epochs, "--run", run, *options]
    return example.train.main([*fixed, *map(str, given)])


def lines(run: Path, event: str) -> list[dict]:
    read = [json.loads(line) for line in (run / "train-0.jsonl").read_text().splitlines()]
    return [line for line in read if line["event"] == event]
