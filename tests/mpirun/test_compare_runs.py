"""`hybridps compare` with real launches of a small script, and MXNet's own servers where it is installed."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
from worlds import environment

from hybridps.cli import main
from hybridps.links import missing

pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")
pytestmark = pytest.mark.timeout(240)

SCRIPT = str(Path(__file__).with_name("digits.py"))
SECONDS = 200


def command(folder: Path, algorithms: str, *options: str, script: str = SCRIPT) -> list[str]:
    words = [sys.executable, "-m", "hybridps", "compare", "--algorithms", algorithms, "--out", str(folder)]
    return [*words, "-n", "2", "--groups", "2", *options, "--", "python", script, "{seed}"]


def compare(folder: Path, algorithms: str, *options: str, **more: str) -> subprocess.CompletedProcess[str]:
    words = command(folder, algorithms, *options, **more)
    return subprocess.run(words, env=environment(), capture_output=True, text=True, timeout=SECONDS, check=False)


@pytest.fixture(scope="module")
def measured(tmp_path_factory) -> Path:
    """Synchronous SGD beside Elastic SGD, one seed."""
    folder = tmp_path_factory.mktemp("compare")
    done = compare(folder, "sync,elastic+every:4")
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_two_algorithms_learn_the_digits(measured: Path) -> None:
    content = json.loads((measured / "compare.json").read_text())
    sync, elastic = content["table"]
    assert (sync["contender"], elastic["contender"]) == ("sync", "elastic+every:4")
    for row in (sync, elastic):
        assert row["accuracy"]["mean"] > 0.9
        assert row["reached"] == row["trials"] == 1
    assert content["accuracy"] == min(sync["best"]["mean"], elastic["best"]["mean"])
    steps, size = 5 * 72, 41 * 64  # 650 float32, of which a layout makes whole cache lines
    trials = {trial["contender"]: trial for trial in content["trials"]}
    assert [point["epoch"] for point in trials["sync"]["points"]] == [0, 1, 2, 3, 4, 5]
    crossed = [point["nbytes"] for point in trials["sync"]["points"]]
    assert crossed == sorted(set(crossed))  # more in each epoch
    assert crossed[-1] <= trials["sync"]["figures"]["bytes_across_groups"]
    # Two groups send their gradients in each step, and the servers answer; with Elastic, every fourth step.
    figures = trials["sync"]["figures"]
    assert (figures["steps"], figures["exchanges"], figures["exchanges_saved"]) == (steps, 2 * steps, 0)
    assert figures["bytes_to_servers"] == 2 * steps * size
    assert 0 <= figures["bytes_across_groups"] - 4 * steps * size < 4 * size  # they also read what is there at first
    figures = trials["elastic+every:4"]["figures"]
    averaged = 2 * (steps // 4 - 1)  # not in the first step
    assert (figures["steps"], figures["exchanges"], figures["exchanges_saved"]) == (steps, averaged, 720 - averaged)
    assert figures["bytes_to_servers"] == averaged * size
    assert 0 < figures["distance"] < 1
    assert elastic["saved"]["mean"] == (720 - averaged) / 720
    assert elastic["nbytes"]["mean"] < sync["nbytes"]["mean"] / 3


def test_the_page_holds_its_pictures(measured: Path) -> None:
    page = (measured / "compare.html").read_text()
    names = {path.stem for path in measured.glob("*.png")}
    assert names >= {"accuracy-over-time", "accuracy-over-bytes", "accuracy-over-epochs", "distance", "traffic"}
    assert page.count("data:image/png;base64,") == len(names)
    assert not re.search(r"""(src|href)=["'](?!data:)""", page)
    assert "<td>elastic+every:4</td>" in page


def test_each_run_has_a_report_of_its_own(measured: Path) -> None:
    summary = json.loads((measured / "elastic+every-4" / "seed-0" / "summary.json").read_text())
    assert (summary["algorithm"], summary["workers"], summary["groups"], summary["lost"]) == ("elastic", 2, 2, [])
    assert summary["accuracy"] > 0.9
    assert (measured / "elastic+every-4" / "seed-0" / "training.png").exists()
    output = (measured / "elastic+every-4" / "seed-0" / "output.log").read_text()
    assert re.search(r"^hybridps: epoch 5: accuracy 0\.9\d+, loss 0\.\d+", output, re.MULTILINE)
    assert "worker=" not in output


def test_runs_that_are_there_are_kept_and_others_refused(measured: Path) -> None:
    before = (measured / "sync" / "seed-0" / "result.json").stat().st_mtime_ns
    again = compare(measured, "sync,elastic+every:4", "--to-accuracy", "0.5")
    assert again.returncode == 0, again.stderr
    assert again.stderr.count("(kept)") == 2
    assert (measured / "sync" / "seed-0" / "result.json").stat().st_mtime_ns == before
    assert "seconds to 50.0 %" in again.stdout
    other = compare(measured, "sync,elastic+every:4", "--set", "alpha=0.1")
    assert other.returncode == 2
    assert "has a run of another command or script, or with other options or settings" in other.stderr


@pytest.mark.nightly
def test_one_that_fails_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os, runpy, sys\n"
        "if os.environ['HYBRIDPS_ALGORITHM'] == 'elastic': sys.exit('an error on purpose')\n"
        f"sys.path.insert(0, os.path.dirname({SCRIPT!r}))\n"
        f"runpy.run_path({SCRIPT!r}, run_name='__main__')\n"
    )
    done = compare(tmp_path / "out", "elastic,sync", script=str(script))
    assert done.returncode == 1
    assert "1 of 2: elastic, seed 0: failed: exit status 1" in done.stderr
    assert "2 of 2: sync, seed 0: finished" in done.stderr
    page = (tmp_path / "out" / "compare.html").read_text()
    assert "an error on purpose" in page
    rows = json.loads((tmp_path / "out" / "compare.json").read_text())["table"]
    assert [(row["failed"], row["accuracy"] is None) for row in rows] == [(1, True), (0, False)]


@pytest.mark.nightly
def test_a_script_that_makes_no_store_is_no_contender(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("print('hybridps: epoch=1 accuracy=1')\n")
    done = compare(tmp_path / "out", "sync", script=str(script))
    assert done.returncode == 1
    assert "failed: the script created no hybridps store" in done.stderr


@pytest.mark.nightly
def test_a_budget_ends_a_run(tmp_path: Path) -> None:
    done = compare(tmp_path / "out", "sync", "--budget-seconds", "20", "-x", "DIGITS_EPOCHS=1000000")
    assert done.returncode == 0, done.stderr
    assert "sync, seed 0: ended by the budget, accuracy 0.9" in done.stderr


def test_a_budget_does_not_excuse_a_script_that_makes_no_store(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import time\nprint('hybridps: epoch=1 accuracy=1', flush=True)\ntime.sleep(1000)\n")
    done = compare(tmp_path / "out", "sync", "--budget-seconds", "3", script=str(script))
    assert done.returncode == 1, done.stderr
    assert "sync, seed 0: failed: the script created no hybridps store" in done.stderr


@pytest.mark.nightly
def test_a_script_that_trains_something_else_is_no_contender(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os, runpy, sys\nos.environ['HYBRIDPS_ALGORITHM'] = 'sync'\n"
        f"sys.path.insert(0, os.path.dirname({SCRIPT!r}))\n"
        f"runpy.run_path({SCRIPT!r}, run_name='__main__')\n"
    )
    done = compare(tmp_path / "out", "elastic", script=str(script))
    assert done.returncode == 1
    assert "the script trained with the algorithm sync, not the algorithm elastic" in done.stderr


@pytest.mark.nightly
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_comparison_has_a_page_and_goes_on(tmp_path: Path, number: int) -> None:
    folder = tmp_path / "out"
    words = command(folder, "sync,elastic")
    with subprocess.Popen(words, env=environment(), stderr=subprocess.PIPE, text=True) as interrupted:
        assert _in_time((folder / "elastic" / "seed-0" / "output.log").exists)
        interrupted.send_signal(number)
        said = interrupted.communicate()[1]
    assert interrupted.returncode == 128 + number
    assert "interrupted; run the same command again to continue" in said
    assert [row["contender"] for row in json.loads((folder / "compare.json").read_text())["table"]] == ["sync"]
    assert "sync, seed 0: finished" in said
    again = compare(folder, "sync,elastic")
    assert again.returncode == 0, again.stderr
    assert again.stderr.count("(kept)") == 1


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "out" / "sync" / "seed-0" / "thesis.tex"
    file.parent.mkdir(parents=True)
    file.touch()
    done = compare(tmp_path / "out", "sync")
    assert done.returncode == 2
    assert "has files that are not from a run" in done.stderr
    assert file.exists()


def test_a_dry_run_prints_the_commands(tmp_path: Path) -> None:
    done = compare(tmp_path / "out", "sync,mxnet:dist_sync", "--seeds", "2", "--dry-run")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 4
    assert "--algorithm sync" in lines[0]
    assert "COMPARE_SEED=1" in lines[2]
    assert lines[2].endswith(f"-- python {SCRIPT} 1")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("algorithms", "options", "said"),
    [
        ("sync,elastik", (), "algorithm 'elastik' is unknown; did you mean 'elastic'"),
        ("sync,sync", (), "names 'sync' twice"),
        ("+always", (), "is not a valid contender"),
        ("mxnet:local", (), "is not a store of MXNet's own: use one of mxnet:dist_sync"),
        ("sync", ("--to-accuracy", "90"), "--to-accuracy 90 must be between 0 and 1"),
        ("elastic", ("--set", "algorithm=sync"), "--set algorithm cannot be used, as the comparison"),
        ("elastic", ("--set", "HYBRIDPS_RUN_FOLDER=x"), "--set run_folder cannot be used, as the comparison"),
        ("elastic", ("--set", "tua=4"), "did you mean 'HYBRIDPS_TAU'"),
        ("elastic+every:4", ("--set", "tau=8"), "--set tau=8 has no meaning with the trigger of 'elastic+every:4'"),
        ("elastic+evry:4", (), "did you mean"),
        ("elastic", ("--servers", "0", "--dry-run"), "--servers 0: the groups of 'elastic' need a server"),
        ("elastic", ("--link", "1gbit", "--groups", "1"), "--link 1gbit has no effect with one group"),
        ("sync,async", ("--groups", "1"), "'async' needs several groups, and there is one"),
        ("sync,gossip", ("--groups", "1"), "'gossip' averages weights with other groups, and there is one group"),
        ("elastic+every:4", ("--groups", "1"), "'elastic+every:4' averages weights with other groups"),
        ("sync", ("--groups", "3"), "every group needs a worker, so give at most 2 groups"),
        ("sync", ("--link", "fast"), "--link fast: 'fast' is not a rate"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(tmp_path: Path, capsys, algorithms, options, said) -> None:
    with pytest.raises(SystemExit) as ended:
        main(command(tmp_path / "out", algorithms, *options)[3:])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.nightly
@pytest.mark.skipif(find_spec("mxnet") is None, reason="MXNet is not installed")
def test_a_store_of_mxnet_that_the_script_does_not_take_is_noticed(tmp_path: Path) -> None:
    done = compare(tmp_path / "out", "mxnet:dist_sync")
    assert done.returncode == 1
    assert "the script created a hybridps store, not dist_sync" in done.stderr


@pytest.mark.nightly
@pytest.mark.skipif(find_spec("mxnet") is None, reason="MXNet is not installed")
def test_another_store_of_mxnet_is_noticed(tmp_path: Path) -> None:
    """The script takes dist_async whatever it is told, so it is right for one of the two contenders."""
    script = tmp_path / "script.py"
    script.write_text(
        "import mxnet as mx\nstore = mx.kv.create('dist_async')\n"
        "print(f'hybridps: epoch=1 accuracy=0.5 worker={store.rank}', flush=True)\n"
    )
    done = compare(tmp_path / "out", "mxnet:dist_sync,mxnet:dist_async", script=str(script))
    assert done.returncode == 1
    assert "mxnet:dist_sync, seed 0: failed: the script created the store dist_async, not dist_sync" in done.stderr
    assert "mxnet:dist_async, seed 0: finished, accuracy 0.5" in done.stderr


@pytest.mark.nightly
def test_groups_behind_links(tmp_path: Path) -> None:
    """What crosses the links is more than the payload, and nothing of them is left when the comparison is killed."""
    if reason := missing():
        pytest.skip(reason)
    done = compare(tmp_path / "out", "elastic", "--link", "100mbit", "--set", "tau=4")
    assert done.returncode == 0, done.stdout + done.stderr
    trial = json.loads((tmp_path / "out" / "compare.json").read_text())["trials"][0]
    assert trial["link_bytes"] > trial["figures"]["bytes_across_groups"] > 0
    words, temporary = command(tmp_path / "killed", "elastic", "--link", "100mbit"), tempfile.mkdtemp(dir="/tmp")
    with subprocess.Popen(
        words, env=environment() | {"TMPDIR": temporary}, stderr=subprocess.PIPE, text=True
    ) as killed:
        log = tmp_path / "killed" / "elastic" / "seed-0" / "hybridps-launcher.jsonl"
        assert _in_time(log.exists)
        killed.send_signal(signal.SIGKILL)
        assert _in_time(lambda: f"hybridps-{killed.pid}-" not in _namespaces())
    assert _in_time(lambda: not any(Path(temporary).iterdir()))
    Path(temporary).rmdir()


def _namespaces() -> str:
    return subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout


def _in_time(condition) -> bool:
    end = time.monotonic() + 90
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()
