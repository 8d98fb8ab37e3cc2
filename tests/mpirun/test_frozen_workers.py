"""A worker that is stopped holds up other groups for `lost_seconds` at most; one that computes is waited for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from worlds import command, environment

pytestmark = pytest.mark.timeout(100)

SCRIPT = str(Path(__file__).with_name("frozen_ranks.py"))
SECONDS = 60
"""Much less than `deadline_seconds`, by which all would end."""


@contextmanager
def started(words: list[str], environ: Mapping[str, str], folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A process; the worker that it has stopped is killed in the end."""
    with subprocess.Popen(
        words, env=environment(environ), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            yield process
        finally:
            if (folder / "stopped").exists() and psutil.pid_exists(pid_of_stopped(folder)):
                left = psutil.Process(pid_of_stopped(folder))
                if left.status() == psutil.STATUS_STOPPED:
                    left.kill()
            process.terminate()


def launch(
    folder: Path, name: str, worker: int, how: str, *options: str, sizes: str = "2,2", lost_seconds: float = 2
) -> list[str]:
    often = ("--set", "trigger=every:2") if name in ("elastic", "local", "diloco", "gossip") else ()
    run = [sys.executable, "-m", "hybridps.cli", "run", "--algorithm", name, "--group-sizes", sizes, *often, *options]
    return [*run, "--set", f"lost_seconds={lost_seconds}", "--", "python", SCRIPT, name, str(folder), str(worker), how]


def exact(workers: int) -> list[float]:
    """What synchronous workers have in the end, if all took part in all steps."""
    return [-sum(worker + step for worker in range(workers) for step in range(20))] * workers


def pid_of_stopped(folder: Path) -> int:
    return int((folder / "stopped").read_text())


def wait_for(process: subprocess.Popen[str], folder: Path, *names: str) -> None:
    """Looks again and again: there is no event to wait for across processes."""
    end = time.monotonic() + SECONDS
    while not all((folder / name).exists() for name in names):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < end, sorted(path.name for path in folder.iterdir())
        time.sleep(0.05)


NIGHTLY = [("elastic", 2), ("elastic", 3), ("async", 3), ("stale", 3), ("local", 3), ("diloco", 3)]


@pytest.mark.parametrize(
    ("name", "worker"), [("sync", 3), *(pytest.param(*each, marks=pytest.mark.nightly) for each in NIGHTLY)]
)
def test_others_go_on_and_its_group_ends(tmp_path: Path, name: str, worker: int) -> None:
    with started(launch(tmp_path, name, worker, "stop"), {}, tmp_path) as process:
        wait_for(process, tmp_path, "done-0-0", "done-1-0")
        out = process.communicate(timeout=SECONDS)[0]
    assert process.returncode == 1, out
    assert f"hybridps: error: rank {worker - 2} of group 1 (process {pid_of_stopped(tmp_path)} on " in out
    assert "gave no sign of life for" in out
    assert "was treated as lost, and the others went on without it" in out
    assert "Traceback" not in out
    assert not psutil.pid_exists(pid_of_stopped(tmp_path))


def test_a_group_of_one_worker_whose_program_hangs_ends(tmp_path: Path) -> None:
    words = launch(tmp_path, "sync", 1, "hang", "--set", "deadline_seconds=12", sizes="1,1")
    with started(words, {}, tmp_path) as process:
        out = process.communicate(timeout=SECONDS)[0]
    assert process.returncode == 1, out
    assert (tmp_path / "done-0-0").exists()
    pid = pid_of_stopped(tmp_path)
    assert f"hybridps: error: the program of worker 1 hangs or is busy (`py-spy dump --pid {pid}` shows where): " in out
    assert "this group asked for nothing for 10.8 s, in which others waited, was treated as lost" in out
    assert "hybridps: group 1 ended with exit status 1" in out


@pytest.mark.nightly
def test_a_group_that_nobody_waits_for_is_named_when_its_program_hangs(tmp_path: Path) -> None:
    words = launch(tmp_path, "elastic", 1, "hang", "--set", "deadline_seconds=12", sizes="1,1")
    with started(words, {}, tmp_path) as process:
        said = "and the launch waits for it: does its program hang (1 worker; worker 1 is process "
        assert any("hybridps: group 1 has done no step for " in line and said in line for line in process.stdout or ())


@pytest.mark.nightly
def test_its_group_comes_back(tmp_path: Path) -> None:
    with started(launch(tmp_path, "elastic", 3, "back", "--restarts", "1"), {}, tmp_path) as process:
        out = process.communicate(timeout=SECONDS)[0]
    assert process.returncode == 0, out
    assert "gave no sign of life for" in out
    assert {path.name for path in tmp_path.glob("done-*")} == {"done-0-0", "done-1-0", "done-2-1", "done-3-1"}


@pytest.mark.nightly
def test_partners_that_gossip_go_on_and_its_group_too_when_it_is_continued(tmp_path: Path) -> None:
    with started(launch(tmp_path, "gossip", 2, "stop", sizes="1,2"), {}, tmp_path) as process:
        wait_for(process, tmp_path, "done-0-0")
        assert not (tmp_path / "done-1-0").exists()
        said = f"hybridps: rank 1 of group 1 (process {pid_of_stopped(tmp_path)} on "
        assert any(said in line and "gives no sign of life for" in line for line in process.stdout or ())
        os.kill(pid_of_stopped(tmp_path), signal.SIGCONT)
        process.communicate(timeout=SECONDS)
    assert process.returncode == 0
    assert len(list(tmp_path.glob("done-*"))) == 3


@pytest.mark.nightly
def test_a_worker_that_is_continued_in_time_changes_no_bit(tmp_path: Path) -> None:
    with started(launch(tmp_path, "sync", 3, "stop", lost_seconds=20), {}, tmp_path) as process:
        wait_for(process, tmp_path, "stopped")
        time.sleep(1.0)
        os.kill(pid_of_stopped(tmp_path), signal.SIGCONT)
        out = process.communicate(timeout=SECONDS)[0]
    assert process.returncode == 0, out
    assert "no sign of life" not in out
    assert [float(path.read_text()) for path in tmp_path.glob("done-*")] == exact(4)


@pytest.mark.nightly
def test_a_job_that_is_stopped_as_a_whole_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    """For longer than `lost_seconds`, with its servers, which are continued a moment before the others."""
    with started(launch(tmp_path, "sync", 3, "busy", lost_seconds=4), {}, tmp_path) as process:
        wait_for(process, tmp_path, "stopped")
        everything = psutil.Process(process.pid).children(recursive=True)
        servers = [each for each in everything if "serve" in each.cmdline()]
        assert servers
        for each in everything:
            each.suspend()
        time.sleep(10)
        for each in servers:
            each.resume()
        time.sleep(1)
        for each in everything:
            each.resume()
        out = process.communicate(timeout=SECONDS)[0]
    assert process.returncode == 0, out
    assert "no sign of life" not in out
    assert [float(path.read_text()) for path in tmp_path.glob("done-*")] == exact(4)


@pytest.mark.nightly
def test_a_worker_that_computes_with_python_s_lock_is_waited_for(tmp_path: Path) -> None:
    """For longer than `lost_seconds`."""
    with started(launch(tmp_path, "sync", 2, "busy", sizes="1,2"), {}, tmp_path) as process:
        out = process.communicate(timeout=SECONDS)[0]
    assert process.returncode == 0, out
    assert "no sign of life" not in out
    assert [float(path.read_text()) for path in tmp_path.glob("done-*")] == exact(3)


@pytest.mark.nightly
@pytest.mark.parametrize("worker", [3, 4])
def test_ranks_of_other_nodes_are_seen_too(tmp_path: Path, worker: int) -> None:
    """Worker 3 tells the leader of itself and of worker 4."""
    words = launch(tmp_path, "elastic", worker, "stop", "--set", "ranks_per_node=2", sizes="1,4")
    with started(words, {}, tmp_path) as process:
        wait_for(process, tmp_path, "done-0-0")
        out = process.communicate(timeout=SECONDS)[0]
    assert process.returncode == 1, out
    assert f"rank {worker - 1} of group 1 (process {pid_of_stopped(tmp_path)} on " in out


@pytest.mark.nightly
def test_others_of_one_world_go_on_until_the_job_ends(tmp_path: Path) -> None:
    """It cannot lose a group: the job ends when the worker is continued."""
    words = command(4, ["-m", "hybridps", SCRIPT, "sync", str(tmp_path), "3", "stop"])
    settings = {"HYBRIDPS_ALGORITHM": "sync", "HYBRIDPS_GROUPS": "2", "HYBRIDPS_LOST_SECONDS": "2"}
    with started(words, settings, tmp_path) as process:
        wait_for(process, tmp_path, "done-0-0", "done-1-0")
        os.kill(pid_of_stopped(tmp_path), signal.SIGCONT)
        out = process.communicate(timeout=SECONDS)[0]
    assert process.returncode == 1, out
    assert "was treated as lost, and the others went on without it" in out
