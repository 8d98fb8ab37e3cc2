"""A traced run, from `hybridps run --trace` to the report, the Chrome trace and the oracle."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from worlds import environment

from hybridps.tracing import on_one_clock, read_trace

pytestmark = pytest.mark.timeout(120)

SCRIPT = str(Path(__file__).with_name("traced_ranks.py"))
STEPS = 30
AHEAD = 100_000
"""Seconds that the monotonic clock of a time namespace is ahead."""


def hybridps(*words: str, status: int | None = 0) -> str:
    command = [sys.executable, "-m", "hybridps", *words]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=100, check=False)
    assert status is None or done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two groups of one worker and a server; worker 1 is slow."""
    folder = tmp_path_factory.mktemp("run")
    words = ("-n", "2", "--groups", "2", "--servers", "1", "--algorithm", "sync", "--quiet")
    hybridps("run", *words, "--trace", "--run", str(folder), "--", "python", SCRIPT, str(STEPS), "1")
    return folder


def test_all_processes_are_in_one_trace(run: Path) -> None:
    clock = on_one_clock(read_trace(run))
    assert [len(worker.steps) for worker in clock.trace.workers.values()] == [STEPS, STEPS]
    assert clock.by_wall_clock == ()
    (server,) = clock.trace.servers.values()
    rounds = [work for work in server.work if work.kind == "round"]
    assert len(rounds) >= STEPS - 5  # the profile begins after the first step
    for worker in clock.trace.workers.values():
        assert {key.name: key.elements for key in worker.keys.values()} == {"first": 10_000, "second": 100}
        for step in worker.steps:
            assert [key for key, _ in step.arrived] == [0, 1] or [key for key, _ in step.arrived] == [1, 0]
            assert len(step.loading) == 1
            assert {span.kind for span in step.spans} <= {"vote", "allreduce", "exchange"}
    # A round is computed when the last contribution has come, and before any worker has its sums.
    last = clock.trace.workers[1].steps[-1]
    computed = [work.time for work in rounds if work.time.ended > last.last_gradient - clock.uncertainty]
    assert computed
    assert min(time.began for time in computed) < last.time.ended + clock.uncertainty


def test_the_chrome_trace_of_a_run(run: Path) -> None:
    said = hybridps("trace", str(run))
    assert "of 2 workers and 1 server" in said
    events = json.loads((run / "trace.json").read_text())["traceEvents"]
    assert {event["cat"] for event in events if "cat" in event} == {
        "step", "loading", "backward", "gradient", "vote", "allreduce", "exchange", "bucket", "message", "round",
    }  # fmt: skip


def test_the_oracle_replays_it(run: Path) -> None:
    hybridps("trace", str(run), "--out", str(run / "copy.json"))
    said = [hybridps("oracle", "replay", str(run / name)) for name in ("", "copy.json")]
    (from_run, note), (from_file, _) = (each.split("hybridps: ") for each in said)
    assert (
        note == "an iteration begins with its first gradient: forward, loading and waits of the program are left out\n"
    )
    assert from_run == from_file
    from_run = json.loads(from_run)
    assert from_run["naive_ms"] > 0


def test_the_report_names_the_slow_worker(run: Path) -> None:
    pytest.importorskip("matplotlib")
    hybridps("report", str(run))
    summary = json.loads((run / "summary.json").read_text())
    assert [slow["worker"] for slow in summary["slow_workers"]] == [1]
    assert summary["step_ms"] == pytest.approx(sum(summary["step_parts_ms"].values()), abs=0.01)
    assert any(said.startswith("worker 1 computes") for said in summary["findings"])
    page = (run / "report.html").read_text()
    assert page.count("data:image/png;base64,") == len(list(run.glob("*.png"))) >= 4
    assert "http" not in page.replace("http://www.w3.org", "")  # it is self-contained


def test_a_killed_run_has_a_trace(tmp_path: Path) -> None:
    folder = str(tmp_path / "run")
    words = ("run", "-n", "2", "--quiet", "--trace", "--run", folder, "--", "python", SCRIPT, str(STEPS), "-1", "1")
    assert "killed by signal 9" in hybridps(*words, status=None)
    steps = [len(worker.steps) for worker in read_trace(Path(folder)).workers.values()]
    assert min(steps) >= STEPS - 2
    hybridps("trace", folder)


def test_a_trace_needs_a_folder() -> None:
    assert "HYBRIDPS_TRACE needs a folder to write to" in hybridps("run", "--trace", "--", "true", status=2)


@pytest.mark.nightly
def test_clocks_that_differ_are_measured(tmp_path: Path) -> None:
    """Worker 1 runs in a time namespace, whose monotonic clock is another one."""
    inside = ["unshare", "--time", "--monotonic", str(AHEAD)]
    if subprocess.run([*inside, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this host makes no time namespaces")
    wrapper = tmp_path / "wrapper"
    first = '[ "$OMPI_COMM_WORLD_RANK$PMI_RANK" = 0 ]'
    wrapper.write_text(f'#!/bin/sh\n{first} || exec {" ".join(inside)} "$@"\nexec "$@"\n')
    wrapper.chmod(0o700)
    words = ("run", "-n", "2", "--quiet", "--trace", "--run", str(tmp_path / "run"), "--", str(wrapper))
    hybridps(*words, sys.executable, "-m", "hybridps", SCRIPT, str(STEPS), "-1")
    trace = read_trace(tmp_path / "run")
    first, second = (trace.workers[number].steps[-1].time.ended for number in (0, 1))
    assert second - first == pytest.approx(AHEAD, abs=100)
    clock = on_one_clock(trace)
    assert clock.uncertainty < 0.05
    first, second = (clock.trace.workers[number].steps[-1].time.ended for number in (0, 1))
    assert second == pytest.approx(first, abs=0.1)
