"""`hybridps run` when something does not start, dies, or ends early: nobody waits, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from worlds import environment, mpirun

from hybridps.report import read_run
from hybridps.report.faults import faults_of

pytestmark = pytest.mark.timeout(60)

SECONDS = 40

SSH = """#!/bin/sh
# A stand-in for a host on which mpirun's daemon never gets going.
echo $$ >> "$(dirname "$0")/reached"
trap '' TERM HUP
sleep 600
"""

STEPS = """
import os, signal, sys, time
from hybridps.job import open_job
from hybridps.memory import Layout

what, who = sys.argv[1:]
layout = Layout.of("float32", {"w": (8,)})
with open_job() as job:
    algorithm = job.algorithm("sync")
    algorithm.initialise("model", layout, algorithm.levels.tensor(layout.length, "float32"))
    algorithm.join_gradients("model", layout)
    gradients = algorithm.levels.tensor(layout.length, "float32")
    for step in range(20):
        if step == 3 and job.worker == int(who):
            if what == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            break
        algorithm.finish_(algorithm.reduce_("model", gradients, 0, layout.length))
    else:
        print("all steps", flush=True)
        sys.exit(0)
"""


@pytest.fixture
def steps(tmp_path: Path) -> Path:
    path = tmp_path / "steps.py"
    path.write_text(STEPS)
    return path


def launch(*words: str, extra: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hybridps.cli", "run", *words]
    return subprocess.run(command, env=environment(extra), capture_output=True, text=True, timeout=SECONDS)


@pytest.fixture
def stuck(tmp_path: Path) -> Iterator[tuple[dict[str, str], Path]]:
    """The environment of a launcher whose `ssh` starts nothing, and the file with the process ids of that."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "ssh").write_text(SSH)
    (tmp_path / "bin" / "ssh").chmod(0o755)
    reached = tmp_path / "bin" / "reached"
    yield {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "TMPDIR": str(tmp_path)}, reached
    for pid in reached.read_text().split():
        if psutil.pid_exists(int(pid)):
            os.kill(int(pid), signal.SIGKILL)


ELSEWHERE = ("-n", "2", "--launcher", "ssh", "-H", "node1,node2")


def test_a_group_that_does_not_start_ends_the_launch(stuck: tuple[dict[str, str], Path], tmp_path: Path) -> None:
    environ, reached = stuck
    done = launch(*ELSEWHERE, "--set", "start_seconds=2", "--", "python", "-c", "pass", extra=environ)
    assert done.returncode == 1
    assert done.stderr.count("group 0 has not started: mpirun runs 0 of its 2 ranks on node1, node2 after 2 s") == 1
    assert not any(psutil.pid_exists(int(pid)) for pid in reached.read_text().split())
    assert not list(tmp_path.glob("hybridps-*"))


def test_a_group_whose_host_refuses_the_connection_ends_the_launch(tmp_path: Path) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text("#!/bin/sh\nexit 255\n")
    ssh.chmod(0o755)
    extra = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    words = ["--groups", "2", "-H", "localhost:1,127.0.0.9:1", "--", "python", "-c", "import time; time.sleep(30)"]
    done = launch(*words, extra=extra)
    assert done.returncode == 255
    assert "ended with exit status 255 (no connection to the host 127.0.0.9); stopping the others" in done.stderr


def test_a_launcher_that_is_killed_while_mpirun_hangs_leaves_nothing(
    stuck: tuple[dict[str, str], Path], tmp_path: Path
) -> None:
    environ, reached = stuck
    command = [sys.executable, "-m", "hybridps.cli", "run", *ELSEWHERE, "--", "python", "-c", "pass"]
    with subprocess.Popen(command, env=environment(environ)) as launcher:
        try:
            wait_for(lambda: reached.exists() and len(reached.read_text().split()) == 2)
            started = psutil.Process(launcher.pid).children(recursive=True)
        finally:
            launcher.kill()
    _, alive = psutil.wait_procs(started, timeout=20)
    assert alive == []
    assert not list(tmp_path.glob("hybridps-*"))


def wait_for(condition) -> None:  # type: ignore[no-untyped-def]
    """Looks again and again: there is no event to wait for across processes."""
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.05)


NEVER = ("--set", "lost_seconds=600", "--set", "deadline_seconds=600")
"""Groups that are not told of a death wait for longer than the test may take."""


def test_servers_are_told_of_a_group_that_has_ended(steps: Path, tmp_path: Path) -> None:
    run = ("--run", str(tmp_path / "run"))
    done = launch("-n", "2", "--groups", "2", *NEVER, *run, "--", "python", str(steps), "kill", "1")
    assert done.returncode == 137, done.stderr
    assert done.stdout.count("[group 0] all steps") == 1
    assert "group 1 of job" in done.stderr
    assert "has ended, as its launcher says: lost" in done.stderr
    assert "Traceback" not in done.stderr
    assert "group 0 ended" not in done.stderr
    assert "hybridps: the job ends with status 137, because group 1 failed" in done.stderr
    happened = [said for _, said in faults_of(read_run(tmp_path / "run"))]
    assert any("group 1 ended with exit status 137 (worker 1 killed by signal 9)" in said for said in happened)


def test_a_rank_that_ends_early_is_named_to_its_group(steps: Path) -> None:
    done = mpirun(2, ["-m", "hybridps", str(steps), "leave", "1"], {"HYBRIDPS_DEADLINE_SECONDS": "600"}, SECONDS)
    assert done.returncode == 1, done.stderr
    assert "hybridps: error: rank 1 has ended its part of the job, and rank 0 waits for it in" in done.stderr
    assert "all steps" not in done.stdout


def test_so_it_is_where_ranks_share_no_memory(steps: Path) -> None:
    environ = {"HYBRIDPS_DEADLINE_SECONDS": "600", "HYBRIDPS_RANKS_PER_NODE": "1"}
    done = mpirun(2, ["-m", "hybridps", str(steps), "leave", "0"], environ, SECONDS)
    assert done.returncode == 1, done.stderr
    assert "hybridps: error: rank 0 has ended its part of the job, and rank 1 waits for it in" in done.stderr
