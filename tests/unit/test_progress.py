"""What scripts report of their models: the line, the call, and the means over workers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridps.cli.run.run_log import RunLog
from hybridps.config import Settings
from hybridps.errors import ConfigError
from hybridps.events import Ended, Evaluated, Launched
from hybridps.progress import mean_of, parse_progress
from hybridps.report import points_of, read_run
from hybridps.report.reading import read_rank

shares = st.floats(0, 1)


@given(st.integers(0, 1000), shares, st.floats(-1e6, 1e6), shares, st.integers(1, 10**6), st.integers(0, 100))
def test_what_is_written_is_read(epoch, accuracy, loss, centre, images, worker) -> None:
    line = f"hybridps: epoch={epoch} accuracy={accuracy} loss={loss} centre_accuracy={centre} images={images}"
    assert parse_progress(f"{line} worker={worker}") == Evaluated(epoch, accuracy, loss, centre, images, worker)


@pytest.mark.parametrize(
    "line",
    ["", "epoch=3 accuracy=0.5", "hybridps: 4 workers in 2 groups", "hybridps: serving at tcp://a:1", " hybridps"],
)
def test_other_lines_are_left_alone(line: str) -> None:
    assert parse_progress(line) is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("epoch=3 accuracy=71.2", "shares from 0 to 1"),
        ("epoch=x", "could not convert"),
        ("epoch=nan", "epoch"),
        ("epoch=-1", ">= 0"),
        ("epoch=1 acc=0.5", "'acc=0.5' in 'hybridps: epoch=1 acc=0.5' has no meaning: give epoch=, accuracy="),
        ("epoch=1 accuracy 0.5", "has no meaning"),
        ("epoch=1 images=0", ">= 1"),
        ("epoch=1 group=0", "has no meaning"),
    ],
)
def test_what_cannot_be_is_refused(words: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_progress(f"hybridps: {words}")


TWO = {0: 1, 1: 1}
"""The workers that still run: one in each of two groups."""


def test_means_are_weighted_only_where_all_give_images() -> None:
    with_images = [Evaluated(1, accuracy=0.0, images=10), Evaluated(1, accuracy=1.0, images=30)]
    assert mean_of(with_images, "accuracy") == 0.75
    assert mean_of([*with_images, Evaluated(1, accuracy=0.5)], "accuracy") == 0.5
    assert mean_of(with_images, "loss") is None


CALLS = """
import hybridps, numpy
hybridps.report_progress(0)
hybridps.report_progress(1, numpy.float32(0.5), loss=float("nan"), worker=2)
"""


def call(folder: Path, **more: str) -> str:
    """Also shows that the call needs neither MPI nor MXNet: they cannot be imported."""
    code = "import sys\nfor name in ('mpi4py', 'mxnet', 'zmq'): sys.modules[name] = None\n" + CALLS
    environ = os.environ | {"HYBRIDPS_RUN_FOLDER": str(folder)} | more
    return subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True).stdout


def test_a_call_prints_the_line_and_writes_the_event_itself_without_a_launcher(tmp_path: Path) -> None:
    assert call(tmp_path) == "hybridps: epoch=0\nhybridps: epoch=1 accuracy=0.5 loss=nan worker=2\n"
    points = points_of(read_run(tmp_path))
    assert [(point.epoch, point.accuracy, point.loss) for point in points] == [(0, None, None), (1, 0.5, None)]
    assert points[0].seconds == 0
    call(tmp_path)  # again: a new run, which replaces the first one
    assert len(points_of(read_run(tmp_path))) == 2


def test_with_a_launcher_the_call_only_prints(tmp_path: Path) -> None:
    call(tmp_path, HYBRIDPS_GROUP_INDEX="0")
    assert list(tmp_path.iterdir()) == []


def test_a_launch_writes_what_it_hears(tmp_path: Path) -> None:
    log = RunLog(Settings(run_folder=str(tmp_path), algorithm="elastic"))
    log.launched(2, 2, 1, ["python", "train.py"])
    assert log.hear(0, "any line", TWO) == (False, ())
    assert log.hear(0, "hybridps: epoch=1 accuracy=0.5 loss=2", TWO) == (False, ())
    first, second = (
        "hybridps: epoch=2 accuracy=0.5 images=10 worker=0",
        "hybridps: epoch=2 accuracy=1 images=30 worker=1",
    )
    assert log.hear(0, first, TWO) == (True, [])
    assert log.hear(1, second, TWO) == (True, ["epoch 2: accuracy 0.875"])
    hide, (message,) = log.hear(1, "hybridps: epoch=2 accuracy=50", TWO)
    assert not hide
    assert "a progress line of group 1 is ignored" in message
    log.ended(3)
    events = read_rank(tmp_path / "hybridps-launcher.jsonl").events[1:]
    assert events[0] == Launched(2, 2, 1, ["python", "train.py"])
    assert events[1:4] == [
        Evaluated(1, 0.5, 2.0, group=0),
        Evaluated(2, 0.5, images=10, worker=0, group=0),
        Evaluated(2, 1.0, images=30, worker=1, group=1),
    ]
    assert events[4:] == [Ended(3)]


def test_the_last_worker_that_runs_completes_an_epoch(tmp_path: Path) -> None:
    log = RunLog(Settings())
    assert log.hear(0, "hybridps: epoch=1 loss=2 worker=0", {0: 1}) == (True, ["epoch 1: loss 2"])
    assert list(tmp_path.iterdir()) == []


def test_the_lines_of_a_worker_that_reports_alone_are_shown(tmp_path: Path) -> None:
    log = RunLog(Settings())
    assert log.hear(0, "hybridps: epoch=0 worker=0", {0: 4}) == (True, [])
    assert log.hear(0, "hybridps: epoch=1 loss=2 worker=0", {0: 4}) == (True, [])
    assert log.hear(0, "hybridps: epoch=2 loss=1 worker=0", {0: 4}) == (True, ["epoch 1, 1 of 4 workers: loss 2"])
    assert log.ended(0) == ["epoch 2, 1 of 4 workers: loss 1"]


def test_a_worker_that_reports_an_epoch_in_two_calls_is_one_worker(tmp_path: Path) -> None:
    log = RunLog(Settings(run_folder=str(tmp_path)))
    log.launched(2, 2, 1, ["python"])
    assert log.hear(0, "hybridps: epoch=1 loss=2 worker=0", TWO) == (True, [])
    assert log.hear(0, "hybridps: epoch=1 accuracy=0.5 worker=0", TWO) == (True, [])
    assert log.latest[0, 0] == Evaluated(1, 0.5, 2.0, worker=0, group=0)
    said = ["epoch 1: accuracy 0.75, loss 3"]
    assert log.hear(1, "hybridps: epoch=1 loss=4 accuracy=1 worker=1", TWO) == (True, said)
    log.ended(0)
    (point,) = points_of(read_run(tmp_path))
    assert (point.accuracy, point.loss) == (0.75, 3.0)


def test_the_lines_of_a_group_alone_name_it() -> None:
    log = RunLog(Settings())
    log.launched(4, 2, 1, ["python"])
    for worker in (2, 3):
        assert log.hear(1, f"hybridps: epoch=1 loss={worker} worker={worker}", {0: 2, 1: 2}) == (True, [])
    assert log.ended(0) == ["epoch 1, group 1 (2 of 4 workers): loss 2.5"]


def test_each_report_of_workers_that_are_far_apart_is_shown() -> None:
    log = RunLog(Settings())
    said = [log.hear(0, f"hybridps: epoch={epoch} loss=1 worker=0", TWO).messages for epoch in (1, 2, 3)]
    said += [log.hear(1, f"hybridps: epoch={epoch} loss=2 worker=1", TWO).messages for epoch in (1, 2, 3)]
    expected = [
        [],
        ["epoch 1, 1 of 2 workers: loss 1"],
        ["epoch 2, 1 of 2 workers: loss 1"],
        ["epoch 1, 1 of 2 workers: loss 2"],
        [],
        ["epoch 3: loss 1.5"],
    ]
    assert [[*lines] for lines in said] == expected
    assert log.ended(0) == ["epoch 2, 1 of 2 workers: loss 2"]


def test_a_group_that_others_are_far_ahead_of_has_one_line_for_an_epoch() -> None:
    log = RunLog(Settings())
    log.launched(4, 2, 1, ["python"])

    def hear(epoch: int, group: int, worker: int) -> list[str]:
        return [*log.hear(group, f"hybridps: epoch={epoch} loss={worker} worker={worker}", {0: 2, 1: 2}).messages]

    assert [hear(epoch, 1, worker) for epoch in (1, 2, 3) for worker in (2, 3)] == [
        *([[]] * 4),
        ["epoch 1, group 1 (2 of 4 workers): loss 2.5"],  # before anybody of the other group has reported
        [],
    ]
    assert [hear(1, 0, worker) for worker in (0, 1)] == [[], ["epoch 1, group 0 (2 of 4 workers): loss 0.5"]]
    assert hear(2, 0, 0) == []
    assert [hear(4, 1, worker) for worker in (2, 3)] == [["epoch 2, group 1 (2 of 4 workers): loss 2.5"], []]
    assert hear(2, 0, 1) == ["epoch 2, group 0 (2 of 4 workers): loss 0.5"]
    assert hear(3, 0, 0) == []
    assert log.ended(0) == ["epoch 3, 3 of 4 workers: loss 1.667", "epoch 4, group 1 (2 of 4 workers): loss 2.5"]


def test_a_group_that_is_late_when_the_others_have_ended_has_one_line_for_an_epoch() -> None:
    log = RunLog(Settings())
    log.launched(2, 2, 1, ["python"])
    assert log.hear(1, "hybridps: epoch=0 worker=1", TWO) == (True, [])
    for epoch in (1, 2, 3, 4):
        log.hear(0, f"hybridps: epoch={epoch} loss=1 worker=0", TWO)
    said = [[*log.hear(1, f"hybridps: epoch={epoch} loss=2 worker=1", {1: 1}).messages] for epoch in (1, 2, 3, 4)]
    alone = [[f"epoch {epoch}, group 1 (1 of 2 workers): loss 2"] for epoch in (1, 2)]
    assert said == [*alone, ["epoch 3: loss 1.5"], ["epoch 4: loss 1.5"]]


def test_the_last_epoch_waits_for_the_whole_group_that_still_runs() -> None:
    log = RunLog(Settings())
    log.launched(4, 2, 1, ["python"])
    for worker in (0, 1):
        assert log.hear(0, f"hybridps: epoch=1 loss={worker} worker={worker}", {0: 2, 1: 2}) == (True, [])
    assert log.hear(1, "hybridps: epoch=1 loss=2 worker=2", {1: 2}) == (True, [])  # the other group has ended
    assert log.hear(1, "hybridps: epoch=1 loss=3 worker=3", {1: 2}) == (True, ["epoch 1: loss 1.5"])


def test_a_worker_that_reports_alone_goes_on_when_the_others_have_ended() -> None:
    log = RunLog(Settings())
    assert log.hear(0, "hybridps: epoch=1 loss=2 worker=0", TWO) == (True, [])
    assert log.hear(0, "hybridps: epoch=2 loss=1 worker=0", {0: 1}) == (
        True,
        ["epoch 1, 1 of 2 workers: loss 2", "epoch 2, 1 of 2 workers: loss 1"],
    )
    assert log.ended(0) == []


def test_an_epoch_that_a_group_was_away_in_is_shown_without_it() -> None:
    log = RunLog(Settings())
    log.hear(0, "hybridps: epoch=1 loss=2 worker=0", TWO)
    assert log.hear(1, "hybridps: epoch=1 loss=4 worker=1", TWO) == (True, ["epoch 1: loss 3"])
    for epoch in (2, 3):
        assert log.hear(0, f"hybridps: epoch={epoch} loss=1 worker=0", TWO) == (True, [])
    assert log.hear(0, "hybridps: epoch=4 loss=0.5 worker=0", TWO) == (True, ["epoch 2, 1 of 2 workers: loss 1"])
    assert log.hear(1, "hybridps: epoch=4 loss=1.5 worker=1", TWO) == (True, ["epoch 4: loss 1"])


def test_an_epoch_of_those_that_still_train_shows_how_many_they_are() -> None:
    log = RunLog(Settings())
    for worker in (0, 1):
        log.hear(worker, f"hybridps: epoch=1 loss=2 worker={worker}", TWO)
    assert log.hear(1, "hybridps: epoch=2 loss=1 worker=1", {1: 1}) == (True, ["epoch 2, 1 of 2 workers: loss 1"])
