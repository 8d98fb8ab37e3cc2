"""Readers of a live run: one that fails is dropped, and the means that they show are of one epoch."""

from __future__ import annotations

from pathlib import Path

import pytest

from hybridps.live import Live, Report, WorkerStatus
from hybridps.live.reading import Seen
from hybridps.watch.epochs import Epochs
from hybridps.watch.line import JobLine
from hybridps.watch.watcher import Watcher


class Counts:
    """A reader that fails from its look number `fails` on."""

    def __init__(self, fails: int = 1 << 30) -> None:
        self.looks = 0
        self.closed = False
        self._fails = fails

    def look(self, before: Live, now: Live) -> None:
        self.looks += 1
        if self.looks >= self._fails:
            raise ValueError("no room left")

    def close(self) -> None:
        self.closed = True


def test_a_reader_that_fails_is_dropped_and_the_others_go_on(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    failing, other = Counts(1), Counts()
    watcher = Watcher(tmp_path, [failing, other])
    watcher.close()
    assert (failing.looks, failing.closed) == (1, False)
    assert other.looks >= 1
    assert other.closed
    assert capfd.readouterr().err == "hybridps: Counts stops: no room left\n"


def test_a_reader_that_cannot_be_closed_does_not_end_the_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    class ClosesBadly(Counts):
        def close(self) -> None:
            super().close()
            raise RuntimeError

    failing, other = ClosesBadly(), Counts()
    Watcher(tmp_path, [failing, other]).close()
    assert failing.closed
    assert other.closed
    assert capfd.readouterr().err == "hybridps: ClosesBadly stops: RuntimeError\n"


def live(*epochs: tuple[float, float]) -> Live:
    """Workers that have reported an epoch and an accuracy; epoch 0: nothing."""
    workers = {}
    for number, (epoch, accuracy) in enumerate(epochs):
        report = Report(worker=number, epoch=epoch, accuracy=accuracy) if epoch else None
        place = {"worker": number, "workers": len(epochs), "group": number, "groups": len(epochs), "group_rank": 0}
        known = {"run": "r", "host": "h", "pid": number, "started_at": 0.0, "steps": 10, "report": report}
        workers[number] = Seen(WorkerStatus(**place, **known), 0.0)
    return Live(workers, {}, None)


def test_a_mean_is_of_one_epoch() -> None:
    epochs = Epochs()
    epochs.look(live((0, 0), (0, 0)))
    assert (epochs.epoch, epochs.mean("accuracy")) == (None, None)
    epochs.look(live((1, 0.5), (1, 0.7)))
    assert (epochs.epoch, epochs.mean("accuracy")) == (1, pytest.approx(0.6))
    epochs.look(live((2, 0.7), (1, 0.7)))
    assert (epochs.epoch, epochs.mean("accuracy")) == (1, pytest.approx(0.6))
    epochs.look(live((3, 0.8), (1, 0.7)))
    epochs.look(live((3, 0.8), (2, 0.9)))
    assert (epochs.epoch, epochs.mean("accuracy")) == (2, pytest.approx(0.8))
    epochs.look(live((3, 0.8), (3, 1.0)))
    assert (epochs.epoch, epochs.mean("accuracy")) == (3, pytest.approx(0.9))


def test_the_line_of_a_job_whose_workers_are_at_different_epochs() -> None:
    line = JobLine()
    line.look(live((0, 0), (0, 0)), live((1, 0.5), (1, 0.7)))
    line.look(live((1, 0.5), (1, 0.7)), live((2, 0.9), (1, 0.7)))
    assert "epoch 1, accuracy 60.0 %" in line.text
