"""The ImageNet example: what its workers have seen together, and the best checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from example_runs import digits

pytest.importorskip("mxnet")
pytestmark = pytest.mark.mxnet


def write(run: Path, worker: int, *lines: dict) -> None:
    with (run / f"train-{worker}.jsonl").open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def epoch(number: int, correct: int, images: int = 100, **more: float) -> dict:
    seen = {"val_images": images, "val_top1_correct": correct, "val_top5_correct": images, "val_loss_sum": 1.0}
    timing = {"train_images": images, "images_per_second": 50.0, "corrupt_images": 0}
    return {"event": "epoch", "epoch": number, "loss": correct / 100} | seen | timing | more


def test_the_last_worker_adds_up(example, tmp_path):
    for worker in range(3):
        write(tmp_path, worker, {"event": "run"})
    write(tmp_path, 0, epoch(1, 10))
    assert example.totals.complete(tmp_path, 1, workers=3, lost=0) is None
    write(tmp_path, 2, epoch(1, 20), epoch(2, 30))
    write(tmp_path, 1, epoch(1, 60, images=200))
    sums = example.totals.complete(tmp_path, 1, workers=3, lost=0)
    assert (sums["val_top1_correct"], sums["val_images"], sums["images_per_second"]) == (90, 400, 150.0)
    assert sums["loss"] == pytest.approx((0.1 + 0.2 + 2 * 0.6) / 4)
    assert example.totals.complete(tmp_path, 1, workers=3, lost=0) is None, "one worker alone does"
    said = example.journal.epoch_line(sums, 90, 3)
    assert said == "epoch 1/90  3 workers  loss 0.3750  top-1 22.50 %  top-5 100.00 %  150 images/s"


def test_a_worker_that_has_died_is_not_waited_for(example, tmp_path):
    write(tmp_path, 0, {"event": "run"}, epoch(1, 10))
    write(tmp_path, 1, {"event": "run"})
    assert example.totals.complete(tmp_path, 1, workers=2, lost=0) is None
    sums = example.totals.complete(tmp_path, 1, workers=2, lost=1)
    assert "1 of 2 workers" in example.journal.epoch_line(sums, 90, 2)


def test_lines_of_an_earlier_run_do_not_count(example, tmp_path):
    write(tmp_path, 0, {"event": "run"}, epoch(1, 10))
    write(tmp_path, 1, {"event": "run"}, epoch(1, 10), {"event": "run"})
    assert example.totals.complete(tmp_path, 1, workers=2, lost=0) is None


@pytest.mark.parametrize("centre", [False, True])
def test_best_leads_to_the_best_epoch(example, tmp_path, centre):
    """By the centre where there is one. Of two as good ones, the later."""
    found = []
    for number, correct in enumerate((20, 50, 40, 50, 10), 1):
        (tmp_path / "checkpoints" / f"epoch-{number:04d}").mkdir(parents=True)
        more = {"centre_top1_correct": correct} if centre else {}
        sums = example.totals.add_up([epoch(number, 100 - correct if centre else correct, **more)])
        assert example.totals.keep(tmp_path, sums)
        example.totals.mark_best(tmp_path, sums)
        found.append((tmp_path / "checkpoints" / "best").resolve().name[-1])
    assert found == ["1", "2", "2", "4", "4"]


def test_the_best_epoch_is_one_of_all_workers(example, tmp_path):
    """While a group is away, the others see a part of the validation images only."""
    found = []
    for number, workers, correct in ((1, 2, 40), (2, 1, 90), (3, 2, 50), (4, 1, 100)):
        (tmp_path / "checkpoints" / f"epoch-{number:04d}").mkdir(parents=True)
        sums = example.totals.add_up([epoch(number, correct)] * workers)
        assert example.totals.keep(tmp_path, sums)
        example.totals.mark_best(tmp_path, sums)
        found.append((tmp_path / "checkpoints" / "best").resolve().name[-1])
    assert found == ["1", "1", "3", "3"]


def test_the_best_checkpoint_is_kept_and_can_be_resumed(example, tmp_path, monkeypatch, capsys):
    """Though later epochs would have pushed it out."""
    scores = iter([{"val_images": 10, "val_top1_correct": 9, "val_top5_correct": 9, "val_loss_sum": 1.0}])
    worse = {"val_images": 10, "val_top1_correct": 1, "val_top5_correct": 9, "val_loss_sum": 1.0}
    monkeypatch.setattr(example.train.Training, "validate", lambda training: next(scores, worse))
    digits(example, tmp_path, "--max-batches", "1", "--keep", "1", epochs=4)
    kept = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert kept == ["best", "epoch-0001", "epoch-0004"]
    assert digits(example, tmp_path / "new", "--max-batches", "1", "--resume", tmp_path / "checkpoints" / "best") == 0
    assert "resumed from" in capsys.readouterr().out
