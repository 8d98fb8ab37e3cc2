"""`hybridps run --join`: groups join a job that runs, stay in it, and leave it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from worlds import environment

pytestmark = pytest.mark.timeout(90)

SCRIPT = Path(__file__).with_name("joining_ranks.py")
SECONDS = 60


class Launch(subprocess.Popen[str]):
    """A launch whose output is in files; killed where a test fails."""

    def __init__(self, folder: Path, name: str, *words: str, stays: bool = False) -> None:
        self.out, self.err = folder / f"{name}.out", folder / f"{name}.err"
        command = [sys.executable, "-m", "hybridps.cli", "run", *words, "--", "python", str(SCRIPT), str(folder)]
        command += ["stays"] if stays else []
        super().__init__(command, env=environment(), stdout=self.out.open("w"), stderr=self.err.open("w"), text=True)

    def __exit__(self, failed: type[BaseException] | None, *details: object) -> None:
        if failed is not None:
            self.kill()
        super().__exit__(failed, *details)  # type: ignore[arg-type]

    def says(self, text: str) -> bool:
        return text in self.err.read_text()

    @property
    def address(self) -> str:
        return next(line.split()[-1] for line in self.out.read_text().splitlines() if "serving at" in line)


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 40
    while not condition():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.05)


def told(folder: Path) -> dict[int, list[float]]:
    """By worker: life, epoch, step and first weight that it was told or found."""
    lines = (folder / "told").read_text().splitlines() if (folder / "told").exists() else []
    return {int(worker): [*map(float, rest)] for worker, *rest in map(str.split, lines)}


@contextmanager
def running(folder: Path, *words: str) -> Iterator[Launch]:
    """A job of two groups that train."""
    options = ("-n", "2", "--groups", "2", "--algorithm", "elastic", "--tau", "2", *words)
    with Launch(folder, "first", *options) as first:
        until(lambda: len(told(folder)) == 2)
        until(lambda: len([*folder.glob("reported-*")]) == 2)
        yield first


def test_a_group_joins_and_is_known_to_a_later_life_of_the_server(tmp_path: Path) -> None:
    with running(tmp_path, "--run", str(tmp_path / "run"), "--server-restarts", "1") as first:
        with Launch(tmp_path, "second", "--join", first.address, "--run", str(tmp_path / "joined")) as second:
            until(lambda: first.says("group 2 has joined: 3 groups, 3 workers"))
            until(lambda: 2 in told(tmp_path))
            life, epoch, step, begins = told(tmp_path)[2]
            assert (life, epoch, step) == (1, 1, 20)
            assert begins > 1, "the weights of the centre"
            (server,) = (each for each in psutil.Process(first.pid).children() if "serve" in each.cmdline())
            server.children()[0].kill()
            until(lambda: first.says("the server is back"))
            (tmp_path / "end-0").touch()
            (tmp_path / "end-1").touch()
            until(lambda: first.says("waiting for groups that have joined the job: 2"))
            assert first.poll() is None
            (tmp_path / "end").touch()
            assert second.wait(SECONDS) == 0, second.err.read_text()
        assert first.wait(SECONDS) == 0, first.err.read_text()
        assert first.says("group 2 has left: 2 groups, 2 workers"), "those that have finished"
    assert float((tmp_path / "done-2").read_text()) > begins
    joined = events_of(tmp_path / "run", "Joined")
    assert [(event["joined"], event["groups"]) for event in joined] == [([2], 3), ([], 2)]
    assert [(event["group"], event["worker"]) for event in events_of(tmp_path / "joined", "Evaluated")] == [(2, 2)]


@pytest.mark.nightly
def test_a_group_that_has_joined_is_restarted_under_its_number(tmp_path: Path) -> None:
    with running(tmp_path, "--set", "lost_seconds=600") as first:
        options = ("--join", first.address, "--restarts", "1", "--run", str(tmp_path / "joined"))
        with Launch(tmp_path, "second", *options, "--set", "lost_seconds=600") as second:
            until(lambda: 2 in told(tmp_path))
            rank_of(second).send_signal(signal.SIGKILL)
            until(lambda: 2 in told(tmp_path) and told(tmp_path)[2][0] == 2)
            (tmp_path / "end").touch()
            assert second.wait(SECONDS) == 0, second.err.read_text()
        assert first.wait(SECONDS) == 0, first.err.read_text()
    assert [event["group"] for event in events_of(tmp_path / "joined", "Restarted")] == [2]


def rank_of(launch: Launch) -> psutil.Process:
    found = [each for each in psutil.Process(launch.pid).children(recursive=True) if str(SCRIPT) in each.cmdline()]
    return found[-1]


def events_of(folder: Path, kind: str) -> list[dict[str, object]]:
    """The events of one kind that a launcher has written."""
    lines = (folder / "hybridps-launcher.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == kind]


@pytest.mark.nightly
def test_two_launches_join_at_once_and_one_that_is_killed_is_left_out(tmp_path: Path) -> None:
    with running(tmp_path, "--set", "lost_seconds=600") as first:
        with (
            Launch(tmp_path, "second", "--join", first.address, "--set", "lost_seconds=600") as second,
            Launch(tmp_path, "third", "--join", first.address, "--set", "lost_seconds=600") as third,
        ):
            until(lambda: first.says(": 4 groups, 4 workers"))
            until(lambda: {2, 3} <= told(tmp_path).keys())
            rank_of(second).send_signal(signal.SIGKILL)
            assert second.wait(SECONDS) == 137
            until(lambda: first.says("has left: 3 groups, 3 workers"))
            (tmp_path / "end").touch()
            assert third.wait(SECONDS) == 0, third.err.read_text()
        assert first.wait(SECONDS) == 0, first.err.read_text()


def refused(*words: str) -> str:
    command = [sys.executable, "-m", "hybridps.cli", "run", "--join", *words, "--", "python", str(SCRIPT), "/"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1
    return done.stderr


@pytest.mark.nightly
def test_what_cannot_be_joined_is_refused_in_one_line(tmp_path: Path) -> None:
    with running(tmp_path, "--set", "job=mine") as first:
        assert "no job 'other' is here" in refused(first.address, "--set", "job=other")
        assert "HYBRIDPS_ALGORITHM is elastic in job 'mine', and local here" in refused(
            first.address, "--algorithm", "local"
        )
        assert "--servers" in refused(first.address, "--servers", "1")
        (tmp_path / "end").touch()
        assert first.wait(SECONDS) == 0
    nobody = "tcp://127.0.0.1:9"
    assert f"no answer from {nobody} within 1 s" in refused(nobody, "--set", "connect_seconds=1")


@pytest.mark.nightly
@pytest.mark.parametrize("stays", [False, True])
def test_a_group_leaves_with_notice_or_is_ended(tmp_path: Path, stays: bool) -> None:
    with running(tmp_path, "--run", str(tmp_path / "run"), "--set", "lost_seconds=600") as first:
        options = ("--join", first.address, "-n", "2", "--set", "lost_seconds=600")
        seconds = "1" if stays else "40"
        with Launch(tmp_path, "second", *options, "--notice-seconds", seconds, stays=stays) as second:
            until(lambda: first.says("group 2 has joined: 3 groups, 4 workers"))
            until(lambda: {2, 3} <= told(tmp_path).keys())
            until(lambda: (tmp_path / "workers-0").read_text() == "4")
            second.send_signal(signal.SIGTERM)
            assert second.wait(SECONDS) == (143 if stays else 0), second.err.read_text()
            assert second.err.read_text().count("SIGTERM: 1 group must leave") == 1
        until(lambda: first.says("group 2 has left: 2 groups, 2 workers"))
        until(lambda: (tmp_path / "workers-0").read_text() == "2")
        done = [tmp_path / f"done-{worker}" for worker in (2, 3)]
        assert [path.exists() for path in done] == [not stays] * 2
        assert stays or done[0].read_text() == done[1].read_text(), "after the same step"
        (tmp_path / "end").touch()
        assert first.wait(SECONDS) == 0, first.err.read_text()
    lines = (tmp_path / "run" / "hybridps-0.jsonl").read_text().splitlines()
    counted = [event for event in map(json.loads, lines) if event["event"] == "Counted"]
    assert [(event["groups"], event["workers"]) for event in counted] == [(3, 4), (2, 2)]
