"""`hybridps run --restarts`: groups that die come back, alone or all together, and nothing is left behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from worlds import environment

pytestmark = pytest.mark.timeout(90)

SECONDS = 80
SCRIPT = Path(__file__).with_name("digits_lives.py")
NEVER = ("--set", "lost_seconds=600", "--set", "deadline_seconds=600")
"""Groups that are not told of a death wait for longer than the test may take."""

CRASHES = """
import os, signal, sys, time
if os.environ.get("HYBRIDPS_LIFE") and sys.argv[1] == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("here again", flush=True)
    time.sleep(600)
if os.environ["HYBRIDPS_GROUP_INDEX"] == "0":
    end = time.monotonic() + 600
    while time.monotonic() < end and not os.path.exists(sys.argv[1]):
        time.sleep(0.05)
os.kill(os.getpid(), signal.SIGKILL)
"""


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "hybridps.cli", "run", "-n", "2", "--groups", "2", *NEVER, *words]


def train(folder: Path, what: str, *options: str) -> subprocess.CompletedProcess[str]:
    words = command("--run", str(folder / "run"), *options, "--", "python", str(SCRIPT), str(folder), what)
    return subprocess.run(words, env=environment(), capture_output=True, text=True, timeout=SECONDS)


def lives(folder: Path) -> dict[tuple[int, int], list[float]]:
    """By worker and life: the epoch and step told, the epoch it goes on from, and the accuracy it begins with."""
    found = [line.split() for line in (folder / "lives").read_text().splitlines()]
    return {(int(worker), int(life)): [*map(float, rest)] for worker, life, *rest in found}


def summary(folder: Path) -> dict[str, object]:
    return json.loads((folder / "run" / "summary.json").read_text())


def checkpoints(folder: Path) -> list[int]:
    return sorted(int(path.stem.partition("-")[2]) for path in folder.glob("epoch-*.npy"))


ELASTIC = ("--algorithm", "elastic", "--alpha", "0.4")


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(("--algorithm", "local", "--tau", "5"), marks=pytest.mark.nightly),
        ("--algorithm", "gossip", "--tau", "5"),
    ],
)
def test_a_group_comes_back_where_groups_average_together_or_with_each_other(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    done = train(tmp_path, "back", *options, "--restarts", "1")
    assert done.returncode == 0, done.stderr
    assert lives(tmp_path)[1, 1][:3] == [2, 144, 2]
    assert summary(tmp_path)["accuracy"] > 0.93


@pytest.mark.parametrize("what", [pytest.param("back", marks=pytest.mark.nightly), "alone"])
def test_a_group_comes_back_to_the_centre(tmp_path: Path, what: str) -> None:
    """Also where the others have come to their end meanwhile: the centre is kept for it."""
    done = train(tmp_path, what, *ELASTIC, "--restarts", "1")
    assert done.returncode == 0, done.stderr
    killed = "group 1 ended with exit status 137 (worker 1 killed by signal 9); started again, 1 of 1"
    assert done.stderr.count(killed) == 1
    assert done.stderr.count("group 1 trains again") == 1
    told = lives(tmp_path)
    epoch, step, gone_on, begins = told.pop((1, 1))
    assert set(told) == {(0, 0), (1, 0)}
    assert 2 <= epoch <= 4 if what == "alone" else epoch == 2
    assert (step, gone_on) == (epoch * 72, epoch)
    assert begins > 0.8
    assert checkpoints(tmp_path) == [1, 2, 3, 4, 5, 6]
    found = summary(tmp_path)
    assert found["restarts"] == [{"group": 1, "life": 1, "status": 137}]
    assert (found["status"], found["epochs"]) == (0, 6)
    assert found["accuracy"] > 0.93


@pytest.mark.nightly
def test_it_is_as_accurate_without_a_death(tmp_path: Path) -> None:
    done = train(tmp_path, "never", *ELASTIC, "--restarts", "1")
    assert done.returncode == 0, done.stderr
    found = summary(tmp_path)
    assert "restarts" not in found
    assert found["accuracy"] > 0.93


def test_the_duties_of_the_first_worker_move_to_a_group_that_lives(tmp_path: Path) -> None:
    done = train(tmp_path, "first", *ELASTIC)
    assert done.returncode == 137, done.stderr
    assert "group 0 ended with exit status 137 (worker 0 killed by signal 9); the other groups go on" in done.stderr
    assert checkpoints(tmp_path) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("named", [pytest.param(True, marks=pytest.mark.nightly), False])
def test_synchronous_groups_begin_anew_together(tmp_path: Path, named: bool) -> None:
    """The launch names the algorithm, or the groups tell the launcher that they train in step."""
    done = train(tmp_path, "anew", *(("--algorithm", "sync") if named else ()), "--restarts", "1")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("all groups are started again, 1 of 1") == 1
    assert "had trained before this one came" not in done.stderr
    told = lives(tmp_path)
    last = max(life for _, life in told)
    assert set(told) >= {(0, 0), (1, 0), (0, 1), (1, last)}
    assert (told[0, 1][:2], told[1, last][:2]) == ([0, 0], [0, 0])
    assert told[0, 1][2:] == told[1, last][2:], "they go on from one checkpoint"
    assert told[0, 1][2] in (2, 3, 4)
    assert checkpoints(tmp_path) == [1, 2, 3, 4, 5, 6]
    assert summary(tmp_path)["accuracy"] > 0.93


STEPS = """
import os, signal, sys
import numpy as np
from hybridps import resume
from hybridps.job import open_job
from hybridps.memory import Layout

folder, dies = sys.argv[1:]
layout = Layout.of("float32", {"w": (4,)})
with open_job() as job:
    group, life = job.session.place.group, resume().life
    algorithm = job.algorithm()
    gradients = algorithm.levels.tensor(layout.length, "float32")
    algorithm.join_gradients("model", layout)
    for step in range(2000):
        if (group, life, step) == (1, 0, 1000):
            if dies == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            raise ValueError("this script has a fault")
        gradients.vectors[0][:] = 1
        algorithm.finish_(algorithm.reduce_("model", gradients, 0, layout.length))
        with open(f"{folder}/{group}-{life}", "a") as file:
            file.write(f"{gradients.vectors[0][0]:g}\\n")
"""


@pytest.mark.parametrize("dies", ["killed", pytest.param("raises", marks=pytest.mark.nightly)])
def test_groups_that_begin_anew_do_no_steps_without_the_one_that_died(tmp_path: Path, dies: str) -> None:
    (tmp_path / "script.py").write_text(STEPS)
    words = command(
        "--servers", "1", "--restarts", "1", "--", "python", str(tmp_path / "script.py"), str(tmp_path), dies
    )
    done = subprocess.run(words, env=environment(), capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    assert "all groups are started again, 1 of 1" in done.stderr
    sums = {path.name: path.read_text().split() for path in tmp_path.glob("?-?")}
    assert sums == {"0-0": ["2"] * 1000, "1-0": ["2"] * 1000, "0-1": ["2"] * 2000, "1-1": ["2"] * 2000}


def test_the_last_restart_is_used_up(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(CRASHES)
    end, said = tmp_path / "end", list[str]()
    words = command("--restarts", "1", "--", "python", str(tmp_path / "script.py"), str(end))
    with subprocess.Popen(words, env=environment(), stderr=subprocess.PIPE, text=True) as launcher:
        for line in map(str.strip, launcher.stderr or ()):
            said += [line] if "group 1 ended with exit status 137" in line else []
            if len(said) == 2:
                end.touch()
    assert launcher.returncode == 137
    assert [line.partition("; ")[2] for line in said] == ["started again, 1 of 1", "the other groups go on"]


@pytest.mark.parametrize("what", ["", pytest.param("stubborn", marks=pytest.mark.nightly)])
def test_a_signal_while_groups_are_started_again_leaves_nothing(tmp_path: Path, what: str) -> None:
    (tmp_path / "script.py").write_text(CRASHES)
    words = command("--restarts", "1000", "--", "python", str(tmp_path / "script.py"), what)
    environ = environment({"TMPDIR": str(tmp_path)})
    with subprocess.Popen(words, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as launcher:
        seen: set[psutil.Process] = set()
        awaited = "here again" if what else "started again, 2 of 1000"
        for line in launcher.stdout or ():
            seen.update(psutil.Process(launcher.pid).children(recursive=True))
            if awaited in line:
                launcher.send_signal(signal.SIGTERM)
                break
        rest = launcher.communicate(timeout=SECONDS)[0]
    assert launcher.returncode == 143
    assert "SIGTERM: stopping" in rest
    assert rest.count("started again") <= 1, "of a death that it was about to report"
    _, alive = psutil.wait_procs(list(seen), timeout=20)
    assert alive == []
    assert not list(tmp_path.glob("hybridps-*"))
