"""`hybridps run` with the words of MXNet's `launch.py`: real processes, and hosts behind an `ssh` that stays here."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from worlds import SUM, environment, is_open_mpi

pytestmark = pytest.mark.timeout(60)

SECONDS = 40

SSH = """#!/bin/sh
# A stand-in: runs the command here, with an environment as bare as that of a new login.
while [ "${1#-}" != "$1" ]; do shift; done
echo "$1" >> "$(dirname "$0")/reached"
shift
exec env -i HOME="$HOME" PATH=/usr/bin:/bin sh -c "$*"
"""

TELL = 'printf "%s\\n" "A is $A" "B is $B" "C is $C" "D is $D"'
"""Prints the variables that the tests give, in a shell."""


@pytest.fixture
def elsewhere(tmp_path: Path) -> dict[str, str]:
    """The environment of a launcher whose `ssh` is the stand-in."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "ssh").write_text(SSH)
    (tmp_path / "bin" / "ssh").chmod(0o755)
    return {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "USER": "launcher"}


def launch(*words: str, extra: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    environ = {name: text for name, text in environment(extra).items() if name not in ("A", "B", "C", "D")}
    environ |= extra or {}
    # On a busy host a daemon of Open MPI (prted) hangs at times in the fork of a rank, which then never starts. So a
    # launch over several hosts has a second try.
    if "-H" in words:
        done = run("--set", "start_seconds=10", *words, environ=environ)
        if "has not started" not in done.stderr:
            return done
    return run(*words, environ=environ)


def run(*words: str, environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hybridps.cli", "run", *words]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=SECONDS)


def told(output: str) -> list[str]:
    return sorted(line.partition("] ")[2] for line in output.splitlines() if " is " in line)


def test_a_launch_line_of_one_host_carries_over(tmp_path: Path) -> None:
    (tmp_path / "sum.py").write_text(SUM)
    script = str(tmp_path / "sum.py")
    done = launch("-n", "2", "-s", "2", "--launcher", "local", "--env-worker", "SUMMAND:1.5", "python", script)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("[group 0] sum 3.0") == 2
    assert done.stdout.count("hybridps: serving at tcp://127.0.0.1:") == 2


def test_variables_reach_ranks_on_other_hosts(elsewhere: dict[str, str], tmp_path: Path) -> None:
    hard = "x y, 'z'; \"=:\\"
    words = ["--num-workers", "2", "--num-servers", "0", "--launcher", "ssh", "-H", "node1,node2"]
    given = ["-x", "A", "--env", "B", "--env-worker", "C:3"]
    # On a busy host mpirun hangs at times when ranks on other hosts have ended before all of them were started.
    done = launch(*words, *given, "sh", "-c", f"{TELL}; sleep 1", extra=elsewhere | {"A": hard, "B": "2", "D": "4"})
    assert done.returncode == 0, done.stderr
    other = "" if is_open_mpi() else "4"  # MPICH and Intel MPI pass the whole environment on
    assert told(done.stdout) == sorted([f"A is {hard}", "B is 2", "C is 3", f"D is {other}"] * 2)
    assert sorted({*(tmp_path / "bin" / "reached").read_text().split()}) == ["node1", "node2"]


def test_a_job_on_other_hosts_by_a_hostfile_of_launch_py(elsewhere: dict[str, str], tmp_path: Path) -> None:
    """Four workers, two for each of its hosts, which are this one's other addresses on the loopback."""
    (tmp_path / "sum.py").write_text(SUM)
    (tmp_path / "hosts").write_text("127.0.0.2\n127.0.0.3\n")
    words = ["-n", "4", "-s", "1", "-H", str(tmp_path / "hosts"), "--launcher", "ssh", "--groups", "2"]
    done = launch(*words, "-x", "SUMMAND=2", "--", "python", str(tmp_path / "sum.py"), extra=elsewhere)
    assert done.returncode == 0, done.stderr
    user = None if is_open_mpi() else "launcher"
    assert [done.stdout.count(f"[group {group}] sum 8.0, {user}") for group in (0, 1)] == [2, 2]
    assert sorted({*(tmp_path / "bin" / "reached").read_text().split()}) == ["127.0.0.2", "127.0.0.3"]


def test_variables_reach_servers_and_workers() -> None:
    words = ["-n", "2", "--groups", "2", "--env", "A:1", "--env-server", "B:2", "--env-worker", "C:3", "-x", "D"]
    command = [sys.executable, "-m", "hybridps.cli", "run", *words, "--", "sh", "-c", f"{TELL}; sleep 60"]
    with subprocess.Popen(command, env=environment({"D": "4"}), stdout=subprocess.PIPE, text=True) as launcher:
        try:
            assert launcher.stdout is not None
            lines: list[str] = []
            while len(told("".join(lines))) < 8:
                lines.append(launcher.stdout.readline())
                assert lines[-1], "the launcher ended early"
            (server,) = [each for each in psutil.Process(launcher.pid).children() if "serve" in each.cmdline()]
            environ = server.environ()
        finally:
            launcher.send_signal(signal.SIGTERM)
            launcher.wait(SECONDS)
    assert told("".join(lines)) == sorted(["A is 1", "B is ", "C is 3", "D is 4"] * 2)
    assert {name: environ.get(name) for name in "ABCD"} == {"A": "1", "B": "2", "C": None, "D": "4"}


def test_a_role_of_mxnet_s_servers_is_not_inherited() -> None:
    """`import mxnet` would never return."""
    done = launch("-n", "1", "sh", "-c", 'echo "role is $DMLC_ROLE"', extra={"DMLC_ROLE": "server"})
    assert (done.returncode, told(done.stdout)) == (0, ["role is "])


REPORTS = """
import os
from hybridps import report_progress
report_progress(0)
report_progress(1, 0.5)
if os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK")) == "0":
    print("trains on")
report_progress(2, 0.5)
"""


def before_it_trains_on(output: str) -> str:
    """What the first group says before its first worker trains on."""
    lines = [line for line in output.splitlines() if line.startswith("[group 0] ")]
    return "\n".join(lines[: lines.index("[group 0] trains on")])


@pytest.mark.parametrize(
    ("store", "options", "apart"),
    [
        pytest.param("device", ["-n", "2"], True, marks=pytest.mark.nightly),
        ("device", ["-n", "2", "--groups", "2"], True),
        ("device", ["-n", "1"], False),
        ("dist_hybridps_sync", ["-n", "2"], False),
    ],
)
def test_workers_that_train_by_themselves_are_told_once(
    tmp_path: Path, store: str, options: list[str], apart: bool
) -> None:
    """The user has started an unchanged script, and forgotten to name the type."""
    script = tmp_path / "train.py"
    script.write_text(f"import mxnet as mx\nmx.kv.create({store!r})\n{REPORTS}")
    done = run(*options, "--", "sh", "-c", f"{sys.executable} -m hybridps {script} 2>&1", environ=environment())
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("has made no KVStore of hybridps") == apart
    assert before_it_trains_on(done.stdout).count("has made no KVStore of hybridps") == apart


def test_a_store_that_the_trainer_does_not_have_is_told_once(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"import mxnet as mx\nkv = mx.kv.create('dist_hybridps')\n{REPORTS}")
    done = launch("-n", "2", "--groups", "2", "sh", "-c", f"{sys.executable} -m hybridps {script} 2>&1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("the KVStore of this script was given no weights") == 1
    assert "the KVStore of this script was given no weights" in before_it_trains_on(done.stdout)


def test_what_the_script_has_left_is_freed_while_modules_still_work(tmp_path: Path) -> None:
    """A DataLoader ends its processes when it is freed, after the script's own functions for the end."""
    script = tmp_path / "train.py"
    script.write_text(
        "import atexit\nimport numpy as np\nimport mxnet as mx\n"
        "from mxnet.gluon.data import ArrayDataset, DataLoader\n"
        "loader = DataLoader(ArrayDataset(np.ones((8, 2), 'float32')), 4, num_workers=1)\n"
        "def end():\n"
        "    print('the number of batches is', len(loader), flush=True)\n"
        "atexit.register(end)\n"
        "for batch in loader:\n"
        "    batch.asnumpy()\n"
    )
    done = launch("-n", "1", "python", str(script))
    assert done.returncode == 0, done.stderr
    assert told(done.stdout) == ["the number of batches is 2"]
    assert "Exception ignored" not in done.stderr


def test_training_in_a_thread_that_is_not_joined_is_waited_for(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import threading, time\nimport mxnet as mx\n"
        "def train():\n"
        "    time.sleep(1)\n"
        "    kv, out = mx.kv.create('dist_hybridps_sync'), mx.nd.zeros(2)\n"
        "    kv.init(0, out)\n"
        "    kv.pushpull(0, mx.nd.ones(2), out=out)\n"
        "    print('the sum is', out.asnumpy()[0], flush=True)\n"
        "threading.Thread(target=train).start()\n"
    )
    done = launch("-n", "2", "python", str(script))
    assert done.returncode == 0, done.stderr
    assert told(done.stdout) == ["the sum is 2.0"] * 2
    assert "has made no KVStore" not in done.stderr


def test_a_run_folder_that_is_used_again_is_named(tmp_path: Path) -> None:
    for earlier in (0, 1):
        done = launch("-n", "1", "--run", str(tmp_path / "run"), "--", "true")
        assert done.returncode == 0, done.stderr
        said = f"{tmp_path / 'run'} has an earlier launch: its events are kept, and the report shows this one"
        assert (done.stdout + done.stderr).count(said) == earlier, done.stderr
