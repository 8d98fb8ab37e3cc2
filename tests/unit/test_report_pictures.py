"""The pictures of a report, as figures before they are drawn, and the printed summary."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hybridps.cli.summary import print_summary
from hybridps.errors import HybridPSError
from hybridps.report import make_report
from hybridps.report.pictures import pictures_of
from hybridps.report.run_report import read_report
from hybridps.tracing import Process, Span, Step, TraceFile

LAUNCHED = {"event": "Launched", "workers": 2, "groups": 2, "servers": 1, "command": []}
ENDED = {"event": "Ended", "status": 0}
CLOSED = {"event": "Closed", "steps": 40, "bytes_within_group": 0, "bytes_to_servers": 0}


@pytest.fixture(autouse=True)
def figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the pictures figures of matplotlib instead of files."""
    pytest.importorskip("matplotlib")
    monkeypatch.setattr("hybridps.report.pictures._png", lambda figure: figure)


def write(folder: Path, name: str, *lines: tuple[float, dict[str, Any]], began: float = 1000.0) -> None:
    """Write an event file whose log began at a time, in seconds since 1970. Each line has its seconds since then."""
    folder.mkdir(exist_ok=True)
    first = {"event": "Configured", "seconds": 0, "started_at": began, "settings": {"algorithm": "elastic"}}
    every = [first, *({"seconds": seconds} | line for seconds, line in lines)]
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in every))


def planned(group: int) -> dict[str, Any]:
    place = {"worker": group, "workers": 2, "group": group, "groups": 2, "group_rank": 0, "node": 0}
    return {"event": "Planned", "role": "worker", "servers": ["tcp://a:1"]} | place


def exchanged(step: int) -> dict[str, Any]:
    return {"event": "Exchanged", "table": "w", "step": step, "took_seconds": 0, "nbytes": 100, "distance": 0.5}


def communicated(steps: int) -> dict[str, Any]:
    spent = {f"{name}_seconds": 0.0 for name in ("group", "exchange", "exposed")}
    return {"event": "Communicated", "steps": steps, "bytes_to_servers": 0, "bytes_from_servers": 0} | spent


def evaluated(epoch: int) -> dict[str, Any]:
    return {"event": "Evaluated", "epoch": epoch, "accuracy": 0.5, "loss": 1.0}


def launch(folder: Path, *reports: tuple[float, dict[str, Any]], trains: bool = False) -> Path:
    """Two groups that train from second 9 to second 13, and are launched in second 1. The last event is in second 14.

    `trains`: whether the script writes training files, from second 8.5 to second 13.5.
    """
    write(folder, "hybridps-launcher", (1, LAUNCHED), *reports, (14, ENDED))
    for group in (0, 1):
        steps = [(9.0 + step / 10, exchanged(step)) for step in range(40)]
        write(folder, f"hybridps-{group}", (5, planned(group)), *steps)
        if trains:
            lines = [{"event": "run", "started_at": 1008.5, "settings": {"workers": 2}}, {"event": "end", "seconds": 5}]
            (folder / f"train-{group}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def drawn(*folders: Path) -> dict[str, Any]:
    return dict(pictures_of([read_report(folder) for folder in folders]))


def lines_of(figure: Any) -> Iterator[Any]:
    for axes in figure.axes:
        yield from axes.get_lines()


@pytest.mark.parametrize("again", [False, True])
def test_a_rate_is_never_negative(tmp_path: Path, again: bool) -> None:
    """Sums of steps do not count the first one; and a group goes on where the clock is 3 s behind."""
    lines = [(1, exchanged(5)), (2, communicated(5)), (3, communicated(6)), (3.5, exchanged(9)), (4, communicated(9))]
    write(tmp_path, "hybridps-0", (0, planned(0)), *lines)
    if again:
        first = (tmp_path / "hybridps-0.jsonl").read_text().replace('"algorithm"', '"launch": "a", "algorithm"')
        (tmp_path / "hybridps-0.jsonl").write_text(first + first.replace("1000.0", "1001.0"))
    (line,) = lines_of(drawn(tmp_path)["rate"])
    assert min(line.get_ydata()) >= 0
    assert max(line.get_ydata()) > 0
    report = read_report(tmp_path)
    for curve in (report.traffic[0].steps, report.traffic[0].nbytes):
        assert curve == sorted(curve)
        assert sorted(value for _, value in curve) == [value for _, value in curve]
    assert report.summary["steps"] == (20 if again else 10)


@pytest.mark.parametrize(
    ("trains", "moment", "begins", "seconds"), [(False, "the workers started", 8, 13), (True, "training began", 0.5, 5)]
)
def test_times_count_from_the_moment_from_which_the_seconds_of_the_summary_count(
    tmp_path: Path, trains: bool, moment: str, begins: float, seconds: float
) -> None:
    """With and without training files, for a run and for two; the curves of accuracy and loss too."""
    one, two = (
        launch(tmp_path / name, (8.5, evaluated(0)), (11, evaluated(1)), trains=trains) for name in ("one", "two")
    )
    assert read_report(one).summary["seconds"] == seconds
    for pictures in (drawn(one), drawn(one, two)):
        for name in {"rate", "traffic", "distance", "learning"} & pictures.keys():
            assert {axes.get_xlabel() for axes in pictures[name].axes} == {f"seconds since {moment}"}
            times = [time for line in lines_of(pictures[name]) for time in line.get_xdata()]
            assert begins - 0.5 <= min(times) <= begins + 0.5
            assert max(times) <= seconds
    assert read_report(one).faults[0] == (-7.5 if trains else 0, "started: ")


def test_runs_whose_seconds_count_from_different_moments_say_so(tmp_path: Path) -> None:
    pictures = drawn(launch(tmp_path / "one"), launch(tmp_path / "two", trains=True))
    assert pictures["rate"].axes[0].get_xlabel() == "seconds since the workers started or training began"


def test_the_page_says_from_when_times_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    make_report(launch(tmp_path / "run"))
    page = (tmp_path / "run" / "report.html").read_text()
    assert "<td>seconds since the workers started</td><td>13</td>" in page
    assert "<p>Seconds since the workers started:</p>" in page


def test_the_legend_of_several_runs_says_that_each_line_is_a_group(tmp_path: Path) -> None:
    one, two = launch(tmp_path / "one"), launch(tmp_path / "two")
    legend = drawn(one, two)["distance"].axes[0].get_legend()
    assert legend.get_title().get_text() == "a line for each group"
    assert [text.get_text() for text in legend.get_texts()] == ["one", "two"]
    legend = drawn(one)["distance"].axes[0].get_legend()
    assert legend.get_title().get_text() == ""
    assert [text.get_text() for text in legend.get_texts()] == ["group 0", "group 1"]


def test_grid_lines_are_below_what_is_drawn(tmp_path: Path) -> None:
    for figure in drawn(traced(tmp_path, 0.0)).values():
        assert [axes.get_axisbelow() for axes in figure.axes] == [True] * len(figure.axes)


def traced(folder: Path, later: float, longer: int = 0) -> Path:
    """Two groups of one worker, with a step of 2 ms each; that of worker 1 is `later` by these seconds, and takes so
    many microseconds `longer`.
    """
    launch(folder)
    for number in (0, 1):
        file = TraceFile(folder, str(number), 1 << 20)
        file.write(Process(number, number, 0, 50.0 + later * number, 0.0, "host"), stays=True)
        file.write(Step(0, 0, 100, 2000 + number * longer, [(0, 1500)], [Span("allreduce", 1510, 1800, 0, 4000)]))
        file.close()
    return folder


@pytest.mark.parametrize(
    ("later", "rows", "label"),
    [
        (0, ["worker 0", "communication", "worker 1", "communication"], "milliseconds of step 0"),
        (9, ["worker 0", "communication"], "milliseconds of step 0 of worker 0; no step of 1 worker meanwhile"),
    ],
)
def test_the_timeline_has_no_empty_rows(tmp_path: Path, later: float, rows: list[str], label: str) -> None:
    (axes,) = drawn(traced(tmp_path, later))["timeline"].axes
    assert [text.get_text() for text in axes.get_yticklabels()] == rows
    assert axes.get_xlabel() == label
    middles = {round(path.vertices[:, 1].mean()) for bars in axes.collections for path in bars.get_paths()}
    assert middles == set(axes.get_yticks()), "each row has something"


def test_the_timeline_of_groups_out_of_step_has_the_longest_step(tmp_path: Path) -> None:
    (axes,) = drawn(traced(tmp_path, later=9.0, longer=2000))["timeline"].axes
    assert axes.get_xlabel() == "milliseconds of step 0 of worker 1; no step of 1 worker meanwhile"
    assert 3.8 < axes.get_xlim()[1] < 4.1


ADVICE = "epochs: 0 (the script reports none: call hybridps.report_progress)\n"


def test_the_printed_summary_says_how_a_script_reports_its_epochs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """If it came to its end and reported nothing."""
    monkeypatch.undo()
    for end, reports, says in ((0, [], True), (0, [(8.5, evaluated(0))], False), (143, [], False)):
        write(tmp_path, "hybridps-launcher", (1, LAUNCHED), *reports, (14, {"event": "Ended", "status": end}))
        print_summary(str(tmp_path))
        said = capsys.readouterr().out
        assert (ADVICE in said) is says
        assert "epochs: 0" in said
        assert json.loads((tmp_path / "summary.json").read_text())["epochs"] == 0


def test_workers_of_whose_end_a_run_folder_knows_nothing_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As if the other hosts do not see the folder."""
    monkeypatch.undo()
    launch(tmp_path)
    for closed in (False, True):
        if closed:
            for group in (0, 1):
                write(tmp_path, f"hybridps-{group}", (5, planned(group)), (9, exchanged(1)), (13, CLOSED))
        print_summary(str(tmp_path))
        said = capsys.readouterr().out
        lost = "lost: none\n" if closed else "lost: workers 0, 1 (the job ended well, but this folder has nothing"
        assert lost in said
        assert ("finished: workers 0, 1\n" in said) is closed


@pytest.mark.parametrize("ended", [True, False])
@pytest.mark.parametrize("trains", [True, False])
def test_a_launch_that_does_not_train_leaves_the_report_as_it_was(
    trains: bool, ended: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As when a training that is finished, or was interrupted after its last epoch, is started again."""
    monkeypatch.undo()
    launch(tmp_path, trains=trains)
    for path in () if ended else tmp_path.glob("train-*.jsonl"):
        path.write_text(path.read_text().splitlines(keepends=True)[0])
    print_summary(str(tmp_path), only_if_events=True)
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.suffix != ".jsonl"}
    capsys.readouterr()
    events = tmp_path / "hybridps-launcher.jsonl"
    events.write_text(2 * events.read_text())
    for group in (0, 1):
        write(tmp_path, f"hybridps-{group}", (5, planned(group)), (6, CLOSED | {"steps": 0}))
    print_summary(str(tmp_path), only_if_events=True)
    assert capsys.readouterr().out == f"hybridps: nothing was trained, so {tmp_path}/report.html stays as it was\n"
    assert {path: path.read_bytes() for path in tmp_path.iterdir() if path.suffix != ".jsonl"} == before
    print_summary(str(tmp_path))
    assert json.loads((tmp_path / "summary.json").read_text())["steps"] == 0


def test_the_printed_summary_tells_slow_from_slow_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = {"worker": 1, "step": 70, "factor": 1.8, "reason": "cpu"}
    figures = {"slow": [slow], "slow_workers": [{"worker": 1, "percent": 59.0, "cause": "compute"}]}
    monkeypatch.setattr("hybridps.report.make_report", lambda folder: dict(figures))
    print_summary(str(tmp_path))
    first, second, _ = capsys.readouterr().out.splitlines()
    assert first.startswith("slow: worker 1, step 70, factor 1.8, reason cpu (named while the job ran; ")
    assert second.startswith("slow_workers: worker 1, percent 59, cause compute (found in the trace afterwards, ")
    figures["slow_workers"] = []
    print_summary(str(tmp_path))
    assert "slow_workers: none\n" in capsys.readouterr().out


def test_a_report_that_cannot_be_written_is_only_a_note_at_the_end_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(path: Path, content: bytes) -> None:
        raise OSError(28, "No space left on device", str(path))

    launch(tmp_path)
    monkeypatch.setattr("hybridps.report.make.write_whole", full)
    reason = f"the report cannot be written to {str(tmp_path)!r}: No space left on device"
    with pytest.raises(HybridPSError, match=re.escape(reason)):
        print_summary(str(tmp_path))
    print_summary(str(tmp_path), only_if_events=True)
    assert capsys.readouterr().err == f"hybridps: no report for {tmp_path}: {reason}\n"


ENDS = """
import sys
from hybridps.cli.summary import print_summary

print_summary(sys.argv[1], only_if_events=True)
sys.exit(3)
"""


def test_a_summary_that_cannot_be_printed_does_not_change_the_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch(tmp_path)
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-c", ENDS, str(tmp_path)]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (3, "")
    assert (tmp_path / "report.html").exists()
