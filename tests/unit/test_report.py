"""The report of a run folder, from files written here."""

from __future__ import annotations

import builtins
import json
import math
import time
from pathlib import Path

import pytest

from hybridps.cli.run.run_log import RunLog
from hybridps.config import Settings
from hybridps.errors import HybridPSError
from hybridps.events import (
    Closed,
    Communicated,
    Configured,
    Ended,
    Evaluated,
    Event,
    EventLog,
    Exchanged,
    Launched,
    Noted,
    Planned,
    Recovered,
    Restarted,
    Slowed,
)
from hybridps.report import Following, make_report, points_of, read_run
from hybridps.report.faults import MOST, faults_of
from hybridps.report.traffic import GroupTraffic, lags


def run_line(workers: int, started_at: float = 100.0, first_epoch: int = 0, store: str = "dist_hybridps_sync") -> dict:
    settings = {"kvstore_type": store, "workers": workers}
    return {"event": "run", "started_at": started_at, "first_epoch": first_epoch, "settings": settings, "seconds": 0.0}


def epoch_line(epoch: int, correct: int, rate: float = 100.0, images: int = 50, **fields) -> dict:
    counts = {"val_images": images, "val_top1_correct": correct, "val_top5_correct": correct + 5, "val_loss_sum": 1.0}
    timing = {"train_images": 200, "train_seconds": 200 / rate, "images_per_second": rate, "seconds": 10.0 * epoch}
    return {"event": "epoch", "epoch": epoch, "loss": 4.0 / epoch, "lr": 0.1} | timing | counts | fields


def end_line(seconds: float, epochs: int = 2) -> dict:
    return {"event": "end", "epochs": epochs, "seconds": seconds}


def write(folder: Path, worker: int, *lines: dict, tail: str = "") -> None:
    text = "".join(json.dumps(line) + "\n" for line in lines) + tail
    (folder / f"train-{worker}.jsonl").write_text(text)


def write_events(folder: Path, rank: int, algorithm: str, closed: Closed | None, groups: int = 2) -> None:
    log = EventLog(folder, rank)
    log.emit(Configured(started_at=1.0, settings={"algorithm": algorithm}))
    place = {"worker": rank, "workers": 4, "group": rank // 2, "groups": groups, "group_rank": rank % 2, "node": 0}
    log.emit(Planned(role="worker", servers=["tcp://a:1", "tcp://a:2"], **place))
    log.emit(Noted(message="a note"))
    if closed:
        log.emit(closed)
    log.close()


def test_sums_over_workers(tmp_path):
    write(tmp_path, 0, run_line(2), epoch_line(1, 20, rate=1.0), epoch_line(2, 40, rate=100.0), end_line(30.0))
    write(
        tmp_path,
        1,
        run_line(2),
        epoch_line(1, 10, rate=1.0),
        epoch_line(2, 45, rate=50.0, images=100, loss=1.0),
        end_line(31.5),
    )
    summary = make_report(tmp_path)
    assert summary == json.loads((tmp_path / "summary.json").read_text())
    assert (tmp_path / "training.png").read_bytes().startswith(b"\x89PNG")
    assert summary["algorithm"] == "sync"
    assert summary["workers"] == 2
    assert summary["epochs"] == 2
    assert summary["top1"] == pytest.approx(85 / 150)
    assert summary["top5"] == pytest.approx(95 / 150)
    assert summary["top1_centre"] is None
    assert summary["loss"] == pytest.approx((2.0 * 50 + 1.0 * 100) / 150)
    assert summary["images_per_second"] == pytest.approx(150.0)
    assert summary["seconds"] == 31.5
    assert summary["finished"] == [0, 1]
    assert summary["lost"] == []
    assert (summary["groups"], summary["servers"]) == (1, 0)
    assert summary["bytes_within_groups"] == summary["bytes_to_servers"] == 0


def test_elastic_job_with_a_lost_group_and_half_a_line(tmp_path):
    centre = {"centre_top1_correct": 48, "centre_top5_correct": 50, "centre_loss_sum": 1.0}
    for worker in (0, 1):
        lines = [run_line(4, store="dist_hybridps_elastic"), *(epoch_line(e, 40, **centre) for e in (1, 2, 3))]
        write(tmp_path, worker, *lines, end_line(60.0, epochs=3))
        write_events(tmp_path, worker, "elastic", Closed(steps=9, bytes_within_group=1000, bytes_to_servers=10))
    write(tmp_path, 2, run_line(4), epoch_line(1, 1), tail='{"event":"epoch","epo')
    write_events(tmp_path, 2, "elastic", None)
    summary = make_report(tmp_path)
    assert summary["algorithm"] == "elastic"
    assert (summary["workers"], summary["groups"], summary["servers"]) == (4, 2, 2)
    assert summary["finished"] == [0, 1]
    assert summary["lost"] == [2, 3]
    assert summary["epochs"] == 3
    assert summary["top1"] == pytest.approx(0.8)
    assert summary["top1_centre"] == pytest.approx(0.96)
    assert summary["bytes_within_groups"] == 2000
    assert summary["bytes_to_servers"] == 20


def test_last_configuration_counts(tmp_path):
    write(tmp_path, 0, run_line(1), epoch_line(1, 5), end_line(1.0))
    write_events(tmp_path, 0, "sync", Closed(steps=1, bytes_within_group=7, bytes_to_servers=7))
    write_events(tmp_path, 0, "elastic", Closed(steps=1, bytes_within_group=1, bytes_to_servers=2))
    summary = make_report(tmp_path)
    assert summary["algorithm"] == "elastic"
    assert summary["bytes_to_servers"] == 2
    assert summary["top1_centre"] is None


def test_resumed_run_keeps_earlier_epochs_and_a_fresh_one_forgets_them(tmp_path):
    before = [run_line(1), epoch_line(1, 1, rate=1.0), epoch_line(2, 2), epoch_line(3, 50)]
    write(tmp_path, 0, *before, run_line(1, first_epoch=2), epoch_line(3, 30, rate=300.0), end_line(9.0, 3))
    summary = make_report(tmp_path)
    assert summary["top1"] == pytest.approx(0.6)
    assert summary["images_per_second"] == pytest.approx(200.0)
    write(tmp_path, 0, *before, end_line(9.0, 3), run_line(1), epoch_line(1, 25))
    summary = make_report(tmp_path)
    assert summary["epochs"] == 1
    assert summary["top1"] == pytest.approx(0.5)
    assert summary["lost"] == [0]


def test_workers_of_an_earlier_larger_run_are_left_out(tmp_path):
    write(tmp_path, 0, run_line(1, started_at=200.0), epoch_line(1, 50), end_line(1.0))
    write(tmp_path, 1, run_line(2, started_at=100.0), epoch_line(1, 0), end_line(1.0))
    summary = make_report(tmp_path)
    assert summary["workers"] == 1
    assert summary["finished"] == [0]
    assert summary["top1"] == 1.0


def launcher_events(folder: Path, *events: Event) -> None:
    log = EventLog(folder, "launcher")
    log.emit(Configured(started_at=1.0, settings={}))
    log.emit(Launched(workers=2, groups=2, servers=1, command=["python"]))
    for event in events:
        log.emit(event)
    log.close()


def test_what_was_reported_before_a_job_started_over_does_not_count(tmp_path: Path) -> None:
    earlier = [Evaluated(epoch, accuracy=0.9, worker=worker, group=worker) for epoch in (1, 2) for worker in (0, 1)]
    later = [Evaluated(1, accuracy=0.5, worker=worker, group=worker) for worker in (0, 1)]
    restarts = [Restarted(group, 1, 137, anew=True) for group in (0, 1)]
    launcher_events(tmp_path, *earlier, *restarts, *later, Ended(130))
    summary = make_report(tmp_path)
    assert (summary["epochs"], summary["accuracy"]) == (1, 0.5)


@pytest.mark.parametrize(("status", "epochs"), [(0, 2), (130, 1)])
def test_an_epoch_that_only_some_workers_reached_counts_if_the_run_came_to_its_end(
    tmp_path: Path, status: int, epochs: int
) -> None:
    reports = [Evaluated(epoch, worker=worker, group=worker) for epoch, worker in ((1, 0), (1, 1), (2, 0))]
    launcher_events(tmp_path, *reports, Ended(status))
    write_events(tmp_path, 0, "elastic", None)
    assert make_report(tmp_path)["epochs"] == epochs


def test_epochs_without_validation_and_without_a_number(tmp_path):
    unseen = dict.fromkeys(("val_images", "val_top1_correct", "val_top5_correct", "val_loss_sum"))
    write(tmp_path, 0, run_line(1), epoch_line(1, 10), epoch_line(2, 0, loss=None, **unseen), end_line(1.0))
    summary = make_report(tmp_path)
    assert summary["epochs"] == 2
    assert summary["top1"] == pytest.approx(0.2)
    assert summary["loss"] == 4.0, "the last one that was reported"


def test_all_lost(tmp_path):
    write(tmp_path, 0, run_line(2), epoch_line(1, 10), epoch_line(2, 20))
    write(tmp_path, 1, run_line(2), epoch_line(1, 30))
    summary = make_report(tmp_path)
    assert summary["lost"] == [0, 1]
    assert summary["epochs"] == 1
    assert summary["top1"] == pytest.approx(0.4)
    assert summary["seconds"] == 20.0


def test_started_only(tmp_path):
    write(tmp_path, 0, run_line(2))
    summary = make_report(tmp_path)
    assert summary["epochs"] == 0
    assert summary["top1"] is None
    assert summary["lost"] == [0, 1]


def test_a_run_that_reports_nothing_has_no_curves(tmp_path: Path) -> None:
    launcher_events(tmp_path, Launched(2, 1, 0, ["train.py"]), Ended(0))
    make_report(tmp_path)
    assert not (tmp_path / "training.png").exists()
    assert ">Training<" not in (tmp_path / "report.html").read_text()


def test_empty_folder(tmp_path):
    with pytest.raises(HybridPSError, match=r"no train-<worker>\.jsonl"):
        make_report(tmp_path)


def test_without_matplotlib_the_summary_is_written(tmp_path, monkeypatch):
    find = builtins.__import__

    def absent(name, *args, **kwargs):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return find(name, *args, **kwargs)

    write(tmp_path, 0, run_line(1), epoch_line(1, 50), end_line(1.0))
    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(HybridPSError, match="matplotlib"):
        make_report(tmp_path)
    assert json.loads((tmp_path / "summary.json").read_text())["top1"] == 1.0


def events_of_group(
    folder: Path, group: int, servers: list[str], *events, algorithm: str = "elastic", began: float = 0.0, **settings
) -> None:
    """The events of a leader, which is the only rank of its group."""
    log = EventLog(folder, group)
    log.emit(Configured(started_at=began or time.time(), settings={"algorithm": algorithm, **settings}))
    place = {"worker": group, "workers": 2, "group": group, "groups": 2, "group_rank": 0, "node": 0}
    log.emit(Planned(role="worker", servers=servers, **place))
    for event in events:
        log.emit(event)
    log.close()


def exchanged(step: int, nbytes: int = 100, distance: float | None = 0.5) -> Exchanged:
    return Exchanged("weights", step, 0.1, nbytes, distance)


def test_all_lives_of_a_group_count_but_not_earlier_launches(tmp_path):
    """The first life of the last launch was killed after 11 steps, the second one did 20."""
    steps = [exchanged(step) for step in (0, 5, 10)]
    closed = Closed(steps=20, bytes_within_group=7, bytes_to_servers=400, bytes_from_servers=450)
    for launch, end in (("before", closed), ("now", None), ("now", closed)):
        events_of_group(tmp_path, 0, ["tcp://a:1"], *steps, *([end] if end else []), launch=launch)
    summary = make_report(tmp_path)
    assert (summary["steps"], summary["exchanges"]) == (11 + 20, 6)
    assert (summary["bytes_across_groups"], summary["bytes_to_servers"]) == (600 + 850, 400)
    assert summary["finished"] == [0]


def test_the_last_steps_are_not_drawn_out_until_their_leader_closes():
    traffic = GroupTraffic()
    for steps, when in ((10, 100.0), (20, 101.0)):
        traffic.add(Communicated(steps, 1, 1, 1), when)
    traffic.add(Closed(22, 7, 0), 150.0)
    assert traffic.steps == [(100, 10), (101, 20), (pytest.approx(101.2), 22)]
    traffic = GroupTraffic()
    traffic.add(Closed(22, 7, 0), 150.0)
    assert traffic.steps == [(150, 22)]


def test_the_page_says_who_was_slow_and_why(tmp_path):
    slow = [Slowed(0, 35, 0.08, 0.02, "loader"), Recovered(0, 60)]
    events_of_group(tmp_path, 0, [], *slow, Closed(steps=90, bytes_within_group=7, bytes_to_servers=0))
    summary = make_report(tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert "worker 0 is slow from step 35 on: its part of a step takes 80 ms, and that of the others 20 ms" in page
    assert "its program begins the step later" in page
    assert "worker 0 keeps up with the others again, from step 60 on" in page
    assert summary["slow"] == [{"worker": 0, "step": 35, "factor": 4.0, "reason": "loader"}]


def test_any_script_s_run_has_a_summary(tmp_path):
    """Of a launch whose groups averaged every fifth of 20 steps with servers."""
    log = RunLog(Settings(run_folder=str(tmp_path), algorithm="elastic"))
    log.launched(2, 2, 1, ["python", "train.py"])
    for group in (0, 1):
        steps = [exchanged(step, distance=0.2 + group / 10) for step in (0, 5, 10, 15)]
        closed = Closed(steps=20, bytes_within_group=7, bytes_to_servers=400, bytes_from_servers=450)
        events_of_group(tmp_path, group, ["tcp://a:1"], *steps, closed)
    for epoch in (1, 2):
        for worker in (0, 1):
            part = f"accuracy={0.2 * epoch + 0.1 * worker} loss=3 centre_accuracy=0.9 worker={worker}"
            log.hear(worker, f"hybridps: epoch={epoch} {part}", {0: 1, 1: 1})
    log.ended(0)
    summary = make_report(tmp_path)
    assert (tmp_path / "training.png").read_bytes().startswith(b"\x89PNG")
    assert (summary["algorithm"], summary["workers"], summary["groups"], summary["servers"]) == ("elastic", 2, 2, 1)
    assert (summary["epochs"], summary["loss"], summary["accuracy_centre"]) == (2, 3.0, 0.9)
    assert summary["accuracy"] == pytest.approx(0.45)
    assert (summary["bytes_to_servers"], summary["bytes_across_groups"]) == (800, 1700)
    assert (summary["steps"], summary["exchanges"], summary["exchanges_saved"]) == (20, 8, 32)
    assert summary["bytes_saved"] == 2 * 8 * 100 * 32 // 8  # both ways
    assert summary["distance"] == pytest.approx(0.25)
    assert (summary["finished"], summary["lost"], summary["status"]) == ([0, 1], [], 0)
    assert "top1" not in summary


def test_groups_without_servers_count_what_they_sent_to_each_other(tmp_path):
    events_of_group(tmp_path, 0, [], exchanged(2, 30, None), exchanged(3, 30, math.nan), Closed(10, 0, 0))
    events_of_group(tmp_path, 1, [], exchanged(7, 12, None), Closed(10, 0, 20))  # eight at the end, without an exchange
    summary = make_report(tmp_path)
    assert (summary["bytes_across_groups"], summary["exchanges"], summary["exchanges_saved"]) == (80, 3, 17)
    assert summary["bytes_to_servers"] == 0
    assert summary["distance"] is None
    assert summary["workers"] == 2


def test_gradients_that_go_to_servers_are_exchanged_in_every_step(tmp_path):
    events_of_group(
        tmp_path, 0, ["tcp://a:1"], Communicated(4, 1, 1, 1, 40, 40), Closed(9, 0, 90, 90), algorithm="sync"
    )
    events_of_group(tmp_path, 1, ["tcp://a:1"], Communicated(5, 1, 1, 1, 50, 50), algorithm="sync")  # lost on the way
    summary = make_report(tmp_path)
    assert (summary["exchanges"], summary["exchanges_saved"], summary["bytes_across_groups"]) == (14, 0, 280)
    assert summary["lost"] == [1]


def test_two_tables_are_exchanged_in_one_exchange(tmp_path):
    events_of_group(tmp_path, 0, [], exchanged(0), Exchanged("other", 0, 0.1, 20, None), Closed(2, 0, 0))
    summary = make_report(tmp_path)
    assert (summary["exchanges"], summary["exchanges_saved"], summary["bytes_across_groups"]) == (1, 1, 120)


def test_staleness_counts_the_steps_behind_the_group_furthest_ahead():
    ahead, behind = GroupTraffic(), GroupTraffic()
    for when, step in ((1.0, 9), (2.0, 19)):
        ahead.add(exchanged(step), when)
    for when, step in ((1.5, 4), (2.0, 9)):
        behind.add(exchanged(step), when)
    assert lags(behind, [ahead, behind]) == [10, 10]
    assert lags(ahead, [ahead, behind]) == [0, 0]
    assert lags(ahead, [ahead]) == [0, 0]


def test_a_launch_counts_until_ranks_run_without_it(tmp_path):
    log = RunLog(Settings(run_folder=str(tmp_path)))
    log.launched(4, 2, 1, ["python"])
    log.hear(0, "hybridps: epoch=1 accuracy=0.5", {0: 4})
    log.ended(0)
    assert make_report(tmp_path)["workers"] == 4
    events_of_group(tmp_path, 0, [], Closed(1, 0, 0))
    summary = make_report(tmp_path)
    assert (summary["workers"], summary["accuracy"]) == (2, None)


def test_ranks_of_an_earlier_launch_are_left_out(tmp_path):
    events_of_group(tmp_path, 1, [], exchanged(0), Closed(1, 0, 0))
    log = RunLog(Settings(run_folder=str(tmp_path)))
    log.launched(1, 1, 0, ["python"])
    log.ended(0)
    summary = make_report(tmp_path)
    assert (summary["workers"], summary["exchanges"], summary["finished"]) == (1, 0, [0])


def test_a_run_is_followed_while_it_writes(tmp_path):
    """Half a line is not read before it is whole, and an earlier run in the same file does not count."""
    events_of_group(tmp_path, 0, [], exchanged(0, 1000))
    following = Following(tmp_path, time.time())
    assert following.figures()["exchanges"] == 0
    events_of_group(tmp_path, 0, [], exchanged(0, 30))
    assert following.figures()["bytes_across_groups"] == 30
    line = (tmp_path / "hybridps-0.jsonl").read_bytes().splitlines()[-1]
    with (tmp_path / "hybridps-0.jsonl").open("ab") as file:
        file.write(line[:20])
        file.flush()
        assert following.figures()["exchanges"] == 1
        file.write(line[20:].replace(b'"step":0', b'"step":1') + b"\n")
    assert following.figures()["exchanges"] == 2
    assert following.figures()["bytes_across_groups"] == 60


def lines_of(folder: Path, name: str, lines: list[tuple[float, dict]]) -> None:
    """An event file whose log began at 1000."""
    first = {"event": "Configured", "seconds": 0, "started_at": 1000, "settings": {}}
    every = [first, *({"seconds": seconds} | line for seconds, line in lines)]
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in every))


def planned(group: int, servers: list[str]) -> dict:
    place = {"worker": group, "workers": 2, "group": group, "groups": 2, "group_rank": 0, "node": 0}
    return {"event": "Planned", "role": "worker", "servers": servers} | place


def communicated(steps: int, nbytes: int) -> dict:
    spent = {f"{name}_seconds": 0.0 for name in ("group", "exchange", "exposed")}
    return {"event": "Communicated", "steps": steps, **spent, "bytes_to_servers": nbytes, "bytes_from_servers": nbytes}


def evaluated(epoch: float, worker: int | None = None, accuracy: float = 0.5) -> dict:
    group = {} if worker is None else {"worker": worker, "group": worker}
    return {"event": "Evaluated", "epoch": epoch, "accuracy": accuracy, **group}


LAUNCHED = {"event": "Launched", "workers": 2, "groups": 2, "servers": 1, "command": []}


def test_bytes_of_gradients_grow_with_the_epochs(tmp_path):
    """An epoch is ten steps of 50 bytes each way, and a second; samples come at other times than the reports."""
    for group in (0, 1):
        samples = [(3.3, communicated(13, 650)), (4.6, communicated(26, 1300))]
        closed = {"event": "Closed", "steps": 30, "bytes_within_group": 0}
        samples.append((5.0, closed | {"bytes_to_servers": 1500, "bytes_from_servers": 1500}))
        lines_of(tmp_path, f"hybridps-{group}", [(0, planned(group, ["tcp://a:1"])), *samples])
    reports = [(2.0 + epoch, evaluated(epoch, worker)) for epoch in range(4) for worker in (0, 1)]
    lines_of(tmp_path, "hybridps-launcher", [(0, LAUNCHED), *reports, (6, {"event": "Ended", "status": 0})])
    points = points_of(read_run(tmp_path))
    assert [point.nbytes for point in points] == pytest.approx([2000 * epoch for epoch in range(4)])


def test_bytes_of_weights_are_those_of_the_exchanges_so_far(tmp_path):
    def of_step(step: int) -> dict:
        return {"event": "Exchanged", "table": "w", "step": step, "took_seconds": 0, "nbytes": 100, "distance": None}

    lines_of(tmp_path, "hybridps-0", [(0, planned(0, [])), (2.5, of_step(5)), (4.5, of_step(10))])
    reports = [(1.0 + epoch, evaluated(epoch)) for epoch in range(5)]
    lines_of(tmp_path, "hybridps-launcher", [(0, LAUNCHED), *reports, (6, {"event": "Ended", "status": 0})])
    assert [point.nbytes for point in points_of(read_run(tmp_path))] == [0, 0, 100, 100, 200]


@pytest.mark.parametrize(("status", "epochs"), [(0, [1, 2, 3]), (143, [1, 2])])
def test_an_epoch_of_one_worker_is_none_where_a_run_was_ended(tmp_path, status, epochs):
    """Worker 1 also says twice what it has in epoch 2: the last one counts."""
    reports = [(1, evaluated(1, 0)), (1, evaluated(1, 1)), (2, evaluated(2, 0, 0.4)), (2, evaluated(2, 1, 0.0))]
    reports += [(3, evaluated(2, 1, 0.6)), (3, evaluated(3, 0, 0.9))]
    lines_of(tmp_path, "hybridps-launcher", [(0, LAUNCHED), *reports, (9, {"event": "Ended", "status": status})])
    points = points_of(read_run(tmp_path))
    assert [point.epoch for point in points] == epochs
    assert points[1].accuracy == 0.5


def launch_lines(launch: str, start: float, *lines: tuple[float, dict]) -> str:
    """The lines of one launch in an event file, `start` seconds since 1970."""
    first = {"event": "Configured", "seconds": 0, "started_at": start, "settings": {"launch": launch}}
    return "".join(json.dumps(line) + "\n" for line in [first, *({"seconds": after} | each for after, each in lines)])


@pytest.mark.parametrize(
    ("first", "epochs", "seconds"),
    [
        (3, [0, 1, 2, 3, 4], [0, 1, 2, 4, 5]),  # goes on after epoch 2, though epoch 3 had been reported before
        (4, [0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 5, 6]),
        (1, [1, 2], [2, 3]),  # a fresh start in a used folder
        (0, [0, 1], [0, 1]),
    ],
)
def test_a_launch_that_continues_an_earlier_one_has_its_epochs_too(tmp_path, first, epochs, seconds):
    """Between them is a launch that was ended before it reported anything."""
    before = [(2.0 + epoch, evaluated(epoch, accuracy=0.1 * epoch)) for epoch in range(4)]
    after = [(2.0 + place, evaluated(first + place, accuracy=0.9)) for place in range(2)]
    text = launch_lines("a", 1000, (0, LAUNCHED), *before, (6, {"event": "Ended", "status": 143}))
    text += launch_lines("b", 2000, (0, LAUNCHED), (1, {"event": "Ended", "status": 143}))
    text += launch_lines("c", 3000, (0, LAUNCHED), *after, (6, {"event": "Ended", "status": 0}))
    (tmp_path / "hybridps-launcher.jsonl").write_text(text)
    sent = [(2.5 + place, {"event": "Exchanged", "table": "w", "step": place, "nbytes": 10}) for place in range(3)]
    sent = [(when, line | {"took_seconds": 0, "distance": None}) for when, line in sent]
    text = "".join(launch_lines(name, start, (0, planned(0, [])), *sent) for name, start in (("a", 1000), ("c", 3000)))
    (tmp_path / "hybridps-0.jsonl").write_text(text)
    points = points_of(read_run(tmp_path))
    assert [point.epoch for point in points] == epochs
    assert [point.seconds for point in points] == pytest.approx(seconds)
    assert points[-1].accuracy == 0.9
    if first == 3:  # two exchanges before the report of epoch 2, and one before that of epoch 4
        assert [point.nbytes for point in points] == [0, 10, 20, 20, 30]


def test_a_launch_that_finds_its_training_done_changes_no_figures(tmp_path):
    """Its first report only says which epoch it begins with."""
    before = [(2.0 + epoch, evaluated(epoch, accuracy=0.1 * epoch)) for epoch in range(4)]
    place = evaluated(3) | {"accuracy": None, "loss": None, "centre_accuracy": None}
    text = launch_lines("a", 1000, (0, LAUNCHED), *before, (6, {"event": "Ended", "status": 0}))
    text += launch_lines("b", 2000, (0, LAUNCHED), (1, place), (2, {"event": "Ended", "status": 0}))
    (tmp_path / "hybridps-launcher.jsonl").write_text(text)
    points = points_of(read_run(tmp_path))
    assert [point.epoch for point in points] == [0, 1, 2, 3]
    assert points[-1].accuracy == pytest.approx(0.3)


def test_a_group_that_comes_back_does_not_report_an_epoch_again(tmp_path):
    """It repeats its first epoch with the weights of the others, in a later life."""
    reports = [(1.0, evaluated(1, 0, 0.4)), (1.0, evaluated(1, 1, 0.4)), (2.0, evaluated(2, 0, 0.8))]
    reports += [(2.5, {"event": "Restarted", "group": 1, "life": 1, "status": 137, "anew": False})]
    reports += [(3.0, evaluated(1, 1, 0.9)), (4.0, evaluated(2, 1, 0.9))]
    lines_of(tmp_path, "hybridps-launcher", [(0, LAUNCHED), *reports, (6, {"event": "Ended", "status": 0})])
    points = points_of(read_run(tmp_path))
    assert [point.accuracy for point in points] == pytest.approx([0.4, 0.85])
    assert [point.seconds for point in points] == pytest.approx([1.0, 4.0])


def test_a_picture_of_an_earlier_report_does_not_stay(tmp_path):
    events_of_group(tmp_path, 0, ["tcp://a:1"], Communicated(5, 1, 1, 1), Closed(20, 7, 0))
    (tmp_path / "timeline.png").write_bytes(b"the user's own")
    make_report(tmp_path)
    assert (tmp_path / "timeline.png").exists(), "there was no report yet"
    make_report(tmp_path)
    assert not (tmp_path / "timeline.png").exists()


def test_a_trigger_that_never_fires_saves_everything(tmp_path):
    for group in (0, 1):
        events_of_group(tmp_path, group, ["tcp://a:1"], Communicated(5, 1, 1, 1), Closed(20, 7, 0))
    summary = make_report(tmp_path)
    assert (summary["exchanges"], summary["exchanges_saved"], summary["bytes_across_groups"]) == (0, 40, 0)


@pytest.mark.parametrize(
    "line",
    [
        {"event": "Exchanged", "table": "w", "step": 1, "took_seconds": 1, "nbytes": 1, "distance": 1, "seconds": "x"},
        {"event": "Configured", "started_at": "x", "settings": {}, "seconds": 0},
        {"event": "Planned", **planned(0, []), "workers": 2_000_000_000},
        {"event": "Communicated", **communicated(1, 10**30)},
        {"event": "Launched", **LAUNCHED, "workers": 2_000_000_000, "seconds": 0},
        {"event": "epoch", "epoch": 2, "val_images": "many", "val_top1_correct": 1},
        {"event": "epoch", "epoch": 2, "seconds": [], "images_per_second": "x"},
        {"event": "run", "settings": {"workers": 2_000_000_000}},
        {"event": "run", "settings": 7, "first_epoch": "x", "started_at": "x"},
    ],
)
def test_lines_that_cannot_be_are_skipped(tmp_path, line):
    write(tmp_path, 0, run_line(2), epoch_line(1, 9))
    events_of_group(tmp_path, 0, [], exchanged(0), Closed(2, 0, 0))
    names = ("train-0", "hybridps-0", "hybridps-launcher", "train-2000000000")
    for name in names:
        with (tmp_path / f"{name}.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
    summary = make_report(tmp_path)
    assert (summary["exchanges"], summary["lost"]) == (1, [0, 1])


def test_a_launch_that_joined_a_job_has_workers_with_the_numbers_of_the_job(tmp_path):
    text = launch_lines("a", 1000, (0, LAUNCHED | {"numbers": [3, 4]}), (9, {"event": "Ended", "status": 1}))
    (tmp_path / "hybridps-launcher.jsonl").write_text(text)
    closed = (8, {"event": "Closed", "steps": 2, "bytes_within_group": 0, "bytes_to_servers": 0})
    for worker, last in ((3, [closed]), (4, [])):
        lines = launch_lines("a", 1001, (0, planned(2, ["tcp://a:1"]) | {"worker": worker, "workers": 5}), *last)
        (tmp_path / f"hybridps-{worker}.jsonl").write_text(lines)
    run = read_run(tmp_path)
    assert (run.expected, run.finished(), run.lost(), len(run.ranks)) == (2, [3], [4], 2)


def test_what_an_earlier_run_without_a_launcher_reported_is_left_out(tmp_path):
    """After a run of four workers comes one of two, and then a launch."""
    for worker in range(4):
        lines = [(0, planned(worker, []) | {"workers": 4})]
        lines_of(tmp_path, f"hybridps-{worker}", lines)
        lines_of(tmp_path, f"hybridps-progress-{worker}", [(1, evaluated(1, worker, 0.1))])
    assert points_of(read_run(tmp_path))[-1].accuracy == pytest.approx(0.1)
    for worker in range(2):
        (tmp_path / f"hybridps-{worker}.jsonl").write_text(launch_lines("", 2001, (0, planned(worker, []))))
        report = launch_lines("", 2000, (0, evaluated(0, worker, 0.0)), (9, evaluated(1, worker, 0.5)))
        (tmp_path / f"hybridps-progress-{worker}.jsonl").write_text(report)
    assert [point.accuracy for point in points_of(read_run(tmp_path))] == [0.0, 0.5]
    reports = [(1, evaluated(1, worker, 0.9)) for worker in (0, 1)]
    text = launch_lines("b", 3000, (0, LAUNCHED), *reports, (9, {"event": "Ended", "status": 0}))
    (tmp_path / "hybridps-launcher.jsonl").write_text(text)
    assert [point.accuracy for point in points_of(read_run(tmp_path))] == [0.9]


def test_the_id_of_the_launch_says_whose_events_count_and_not_the_clock(tmp_path):
    """The clock of group 0 is behind, that of group 1 ahead, and group 2 is of an earlier launch."""
    log = RunLog(Settings(run_folder=str(tmp_path), launch="new"))
    log.launched(2, 2, 0, ["python"])
    events_of_group(tmp_path, 0, [], exchanged(0), Closed(1, 0, 0), began=time.time() - 1e4, launch="new")
    following = Following(tmp_path, time.time(), "new")
    assert following.figures()["exchanges"] == 1
    events_of_group(tmp_path, 1, [], exchanged(0), Closed(1, 0, 0), began=time.time() + 1e4, launch="new")
    events_of_group(tmp_path, 2, [], exchanged(0), Closed(1, 0, 0), began=time.time() + 1e4, launch="old")
    log.ended(0)
    summary = make_report(tmp_path)
    assert (summary["status"], summary["exchanges"], summary["finished"]) == (0, 2, [0, 1])


def noted(message: str) -> dict:
    return {"event": "Noted", "message": message}


def joined(*groups: int) -> dict:
    return {"event": "Joined", "joined": groups, "groups": 2 + len(groups), "workers": 2 + len(groups)}


def test_what_happened_is_in_order_of_time_and_each_text_once(tmp_path):
    lines_of(tmp_path, "hybridps-0", [(0, planned(0, [])), (9, noted("both")), (3, noted("one"))])
    lines_of(tmp_path, "hybridps-1", [(0, planned(1, [])), (4, noted("both")), (2, noted("other"))])
    assert faults_of(read_run(tmp_path)) == [(2, "other"), (3, "one"), (4, "both")]


def test_a_group_that_leaves_does_not_join(tmp_path):
    changes = [(1, joined(2)), (2, joined(2, 3)), (3, joined(3)), (4, joined())]
    lines_of(tmp_path, "hybridps-launcher", [(0, LAUNCHED), *changes])
    assert [said for _, said in faults_of(read_run(tmp_path))][1:] == [
        "group 2 has joined: 3 groups, 3 workers",
        "group 3 has joined: 4 groups, 4 workers",
        "group 2 has left: 3 groups, 3 workers",
        "group 3 has left: 2 groups, 2 workers",
    ]


@pytest.mark.parametrize(("status", "name"), [(3, ""), (130, " (SIGINT)"), (137, " (SIGKILL)"), (255, "")])
def test_a_status_above_128_is_a_signal(tmp_path, status, name):
    lines_of(tmp_path, "hybridps-launcher", [(0, LAUNCHED), (9, {"event": "Ended", "status": status})])
    assert [said for _, said in faults_of(read_run(tmp_path))] == [
        "started: ",
        f"the job ended with status {status}{name}",
    ]


def test_a_worker_that_waits_is_not_the_one_that_it_has_called_slow(tmp_path):
    slow = {"event": "Slowed", "worker": 1, "steps": 5, "own_seconds": 0.5, "others_seconds": 0.1, "reason": "compute"}
    waited = {"event": "Waited", "what": "step 9", "waited_seconds": 3.0}
    failed = {"event": "Failed", "error": "no room"}
    lines_of(tmp_path, "hybridps-0", [(0, planned(0, [])), (1, slow), (2, waited), (3, failed)])
    found = [said for _, said in faults_of(read_run(tmp_path))]
    assert found[1:] == ["worker 0 has waited 3 s in step 9", "worker 0 failed: no room"]


def test_many_notes_leave_the_first_and_the_last_lines(tmp_path):
    notes = [(1 + number, noted(f"note {number}")) for number in range(3 * MOST)]
    lines_of(tmp_path, "hybridps-launcher", [(0, LAUNCHED), *notes, (999, {"event": "Ended", "status": 3})])
    found = [said for _, said in faults_of(read_run(tmp_path))]
    assert len(found) == MOST
    assert (found[0], found[1], found[-2], found[-1]) == (
        "started: ",
        "note 0",
        f"note {3 * MOST - 1}",
        "the job ended with status 3",
    )
    assert f"{3 * MOST + 2 - (MOST - 1)} more lines, which are in the files of the run folder" in found


def test_steps_without_times_are_no_steps(tmp_path):
    lines_of(tmp_path, "hybridps-0", [(0, planned(0, [])), (0, communicated(1, 1)), (0, communicated(9, 1))])
    lines_of(tmp_path, "hybridps-1", [(0, planned(1, [])), (2, communicated(1, 1)), (1, communicated(9, 1))])
    assert "step_ms" not in make_report(tmp_path)


def test_a_slow_worker_whose_others_take_no_time(tmp_path):
    slow = {"event": "Slowed", "worker": 0, "steps": 5, "own_seconds": 0.5, "others_seconds": 0.0, "reason": "compute"}
    lines_of(tmp_path, "hybridps-0", [(0, planned(0, [])), (1, slow)])
    (found,) = make_report(tmp_path)["slow"]
    assert found == {"worker": 0, "step": 5, "factor": 500_000.0, "reason": "compute"}
