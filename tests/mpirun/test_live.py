"""What a run shows while it goes on: `hybridps top RUN`, and workers that are slower than others."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import live_steps
import msgspec
import pytest
import worlds

from hybridps.cli.top.run import group_rows, headlines, worker_rows
from hybridps.live import Live, read_live

pytestmark = pytest.mark.timeout(240)

SCRIPT = live_steps.__file__
SECONDS = 100
WITHIN_STEPS = 20
"""A slow worker is named within so many steps."""


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("HYBRIDPS_", "OMP_NUM"))}


OUTPUT = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}


def command(*options: str, script: tuple[str, ...]) -> list[str]:
    return [sys.executable, "-m", "hybridps", "run", *options, "--", sys.executable, SCRIPT, *script]


def top(*arguments: str) -> str:
    asked = [sys.executable, "-m", "hybridps", "top", "--once", *arguments]
    done = subprocess.run(asked, env=environment(), capture_output=True, text=True, timeout=SECONDS, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    return done.stdout


def until(live: Path, true) -> Live:
    """What a live folder shows when it is `true`."""
    end = time.monotonic() + SECONDS
    while not true(found := read_live(live)):
        assert time.monotonic() < end, found
        time.sleep(0.05)
    return found


def events(folder: Path, worker: int, kind: str) -> list[dict]:
    lines = (folder / f"hybridps-{worker}.jsonl").read_bytes().splitlines()
    return [event for line in lines if (event := msgspec.json.decode(line))["event"] == kind]


def table(shown: str, first: str) -> list[list[str]]:
    """The rows of the table that begins with this head, as words."""
    lines = shown.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(first))
    return [line.split() for line in lines[start + 1 : lines.index("", start) if "" in lines[start:] else None]]


def test_top_shows_workers_groups_and_servers_and_who_is_lost(tmp_path: Path) -> None:
    run = tmp_path / "run"
    asked = command(
        *("-n", "3", "--group-sizes", "2,1", "--algorithm", "elastic", "--run", str(run)),
        *("--set", "slow_factor=1000"),  # however loaded this machine is
        script=("0", "5", "even", str(tmp_path)),
    )
    with subprocess.Popen(asked, env=environment(), **OUTPUT) as launch:
        try:
            live = run / "live"
            until(live, lambda found: found.launch is not None and len(found.launch.status.reports) == 3)
            seen = until(live, lambda found: all(each.status.exchanges > 2 for each in found.workers.values()))
            assert [each.status.group for each in seen.workers.values()] == [0, 0, 1]
            assert seen.launch.status.pid == launch.pid
            shown = top(str(run))
            assert shown.startswith("elastic, 3 workers, 2 groups, 1 server, up ")
            workers = table(shown, "WORKER")
            assert [row[:2] for row in workers] == [["0", "0"], ["1", "0"], ["2", "1"]]
            for row in workers:
                assert int(row[4]) >= 20
                assert row[-5:] == ["1", "0.25", "50.0", "%", "running"]
            assert [[row[0], row[1], row[-1]] for row in table(shown, "GROUP ")] == [
                ["0", "2", "running"],
                ["1", "1", "running"],
            ]
            assert [[row[0], row[-1]] for row in table(shown, "SERVER")] == [[*seen.servers, "running"]]

            os.kill(seen.workers[2].status.pid, signal.SIGKILL)
            lost = until(live, lambda found: any(not group.running for group in found.launch.status.groups))
            assert [row[-1] for row in worker_rows(seen, lost)] == ["running", "running", "gone"]
            assert [row[-1] for row in group_rows(seen, lost)] == ["running", "lost: exit status 137"]
        finally:
            (tmp_path / "enough").touch()
            said, _ = launch.communicate(timeout=SECONDS)
    assert launch.returncode == 137, said
    over = read_live(live)
    assert over.is_over
    assert [row[-1] for row in worker_rows(lost, over)] == ["ended", "ended", "gone"]
    assert headlines(over, over)[0].endswith(", ended with an error")


def test_a_hang_is_shown_while_it_lasts_and_in_the_report(tmp_path: Path) -> None:
    given = ("-n", "2", "--run", str(tmp_path), "--set", "deadline_seconds=20", "--set", "lost_seconds=5")
    with subprocess.Popen(command(*given, script=("60", "5", "hangs")), env=environment(), **OUTPUT) as launch:
        try:
            until(tmp_path / "live", lambda found: sum(each.status.is_still for each in found.workers.values()) == 2)
            shown = top(str(tmp_path))
            said, _ = launch.communicate(timeout=SECONDS)
        finally:
            launch.terminate()
    assert launch.returncode == 1, said
    first, second = (line for line in shown.splitlines() if " no step for " in line)
    assert "worker 1 has not" in first
    assert "waits" not in second
    assert table(shown, "WORKER")[1][8:12] == ["-"] * 4
    summary = msgspec.json.decode((tmp_path / "summary.json").read_bytes())
    assert summary["steps"] == live_steps.AT, summary
    page = (tmp_path / "report.html").read_text()
    assert re.match(r"worker 0 has waited \d+ s in step 30: .* that worker 1 has not", summary["findings"][0])
    # Two threads of worker 0 notice the deadline, and either one may come first.
    assert re.match(r"worker 0 failed: (rank 1 did not reach the next step|worker 0 \(group 0)", summary["findings"][1])
    assert "Why it failed" in page


def test_the_report_has_the_last_steps_and_the_error_of_a_worker_that_failed(tmp_path: Path) -> None:
    asked = command("-n", "2", "--run", str(tmp_path), script=("60", "5", "fails"))
    done = subprocess.run(asked, env=environment(), capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 1, done.stderr
    assert msgspec.json.decode((tmp_path / "summary.json").read_bytes())["steps"] == live_steps.AT
    assert "worker 1 failed: ValueError: image 77 is damaged" in (tmp_path / "report.html").read_text()


def test_top_and_the_report_say_which_signal_stopped_a_run(tmp_path: Path) -> None:
    asked = command("-n", "2", "--run", str(tmp_path), script=("0", "5", "even", str(tmp_path)))
    with subprocess.Popen(asked, env=environment(), **OUTPUT) as launch:
        try:
            until(tmp_path / "live", lambda live: len(live.workers) == 2 and live.steps > 5)
        finally:
            launch.send_signal(signal.SIGINT)
            launch.communicate(timeout=SECONDS)
    assert launch.returncode == 128 + signal.SIGINT
    shown = top(str(tmp_path))
    assert ", stopped by SIGINT" in shown.splitlines()[0]
    assert table(shown, "GROUP")[0][-4] == "lost:"
    assert "the job ended with status 130 (SIGINT)" in (tmp_path / "report.html").read_text()


def test_a_world_without_a_launcher_is_found_and_leaves_nothing(tmp_path: Path) -> None:
    """Two groups and a server that the first worker starts, none of which was told where to write."""
    asked = worlds.command(3, ["-m", "mpi4py", SCRIPT, "0", "5", "even", str(tmp_path)])
    environ = worlds.environment({"HYBRIDPS_GROUPS": "2", "TMPDIR": str(tmp_path)})
    with subprocess.Popen(asked, env=environ, **OUTPUT) as run:
        try:
            runs = tmp_path / f".hybridps-{os.getuid()}"
            end = time.monotonic() + SECONDS
            while not (found := [*runs.glob("*")] if runs.exists() else []):
                assert time.monotonic() < end
                time.sleep(0.05)
            seen = until(found[0], lambda live: len(live.workers) == 3 and live.steps > 5 and live.servers)
            assert {each.status.groups for each in seen.workers.values()} == {2}
            assert runs.stat().st_mode & 0o777 == 0o700
        finally:
            (tmp_path / "enough").touch()
            said, _ = run.communicate(timeout=SECONDS)
        assert run.returncode == 0, said
    assert not runs.exists()


def run_to_its_end(folder: Path, workers: int, steps: int, milliseconds: float, way: str, *options: str) -> str:
    asked = command("-n", str(workers), "--run", str(folder), *options, script=(str(steps), str(milliseconds), way))
    done = subprocess.run(asked, env=environment(), capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return done.stderr


def check_named(folder: Path, said: str, worker: int) -> None:
    """The worker, and no other, was named within `WITHIN_STEPS` steps of its trouble."""
    slowed = events(folder, 0, "Slowed")
    assert [event["worker"] for event in slowed] == [worker], slowed
    assert live_steps.AT < slowed[0]["steps"] <= live_steps.AT + WITHIN_STEPS
    assert f"hybridps: worker {worker} is slow: its part of a step takes " in said
    assert events(folder, worker, "Slowed")[0]["reason"] == slowed[0]["reason"]
    (listed,) = msgspec.json.decode((folder / "summary.json").read_bytes())["slow"]
    assert (listed["worker"], listed["step"], listed["reason"]) == (worker, slowed[0]["steps"], slowed[0]["reason"])


@pytest.mark.nightly
def test_a_worker_that_waits_is_named_within_20_steps(tmp_path: Path) -> None:
    said = run_to_its_end(tmp_path, 2, live_steps.AT + WITHIN_STEPS + 5, 25, "waits")
    check_named(tmp_path, said, 1)
    assert read_live(tmp_path / "live").workers[1].status.slow == events(tmp_path, 1, "Slowed")[0]["reason"]


@pytest.mark.nightly
def test_a_worker_that_stalls_in_some_steps_is_named(tmp_path: Path) -> None:
    said = run_to_its_end(tmp_path, 2, 200, 10, "stalls")
    (slowed,) = events(tmp_path, 0, "Slowed")
    assert slowed["worker"] == 1
    assert "worker 1 is slow" in said


@pytest.mark.nightly
@pytest.mark.parametrize("way", ["computes", "stopped"])
def test_a_worker_with_half_the_cpu_is_named_within_20_steps(tmp_path: Path, way: str) -> None:
    check_named(tmp_path, run_to_its_end(tmp_path, 2, 80, 30, way), 1)


@pytest.mark.nightly
def test_a_worker_that_shares_its_core_is_named_within_20_steps(tmp_path: Path) -> None:
    """Its steps are as short as they may be: a look takes place every 0.05 s, and names a worker at the fourth."""
    check_named(tmp_path, run_to_its_end(tmp_path, 2, 80, 10, "shared", "--bind", "cores"), 1)
    assert events(tmp_path, 0, "Slowed")[0]["reason"] == "cpu"


@pytest.mark.nightly
@pytest.mark.parametrize("milliseconds", [3, 20])
def test_nobody_is_named_in_an_even_run_of_2000_steps(tmp_path: Path, milliseconds: int) -> None:
    """Nothing else may run on these cores meanwhile."""
    said = run_to_its_end(tmp_path, 2, 2000, milliseconds, "even")
    assert events(tmp_path, 0, "Slowed") == []
    assert "is slow" not in said


def test_a_group_that_waits_for_servers_says_who_is_behind() -> None:
    """Group 1 takes 2.6 s in one step. Group 0 says after a second, a tenth of the deadline, what it waits for."""
    given = ("-n", "2", "--groups", "2", "--set", "deadline_seconds=10", "--set", "lost_seconds=5")
    asked = command(*given, script=("34", "150", "stalls"))
    done = subprocess.run(asked, env=environment(), capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    assert "step 32: the answer of the servers, and group 1 is behind" in done.stderr
