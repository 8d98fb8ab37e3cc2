"""`hybridps run` with a real mpirun, and scripts that do not need the rest of hybridps."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from worlds import SUM, after_first_line, is_open_mpi

pytestmark = pytest.mark.timeout(60)

SECONDS = 40
LAUNCH = Path(__file__).parents[2] / "launch"

SCRIPT = """
import os, signal, sys, time
from pathlib import Path
from mpi4py import MPI

world = MPI.COMM_WORLD
group, rank, what = os.environ.get("HYBRIDPS_GROUP_INDEX"), world.rank, sys.argv[1]
gone = Path(sys.argv[2])
sys.stdout.write(f"up {rank}\\n")
sys.stdout.flush()
world.Barrier()
if what == "settings":
    told = [f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith("HYBRIDPS_")]
    sys.stdout.write(" ".join(told) + "\\n")
elif what == "wait":
    time.sleep(60)
elif what == "bar" and rank == 0:
    for percent in range(0, 101, 10):
        sys.stdout.write(f"\\r{percent}%")
        sys.stdout.flush()
    sys.stdout.write("\\nwithout an end")
elif group == "1" and rank == 1:
    gone.touch()
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif what == "exit":
        os._exit(3)
    elif what == "vanish":
        os._exit(0)
    elif what == "raise":
        raise RuntimeError("boom")
elif group == "1" and what in ("kill", "exit", "raise", "vanish"):
    world.recv(source=1)
elif group == "0" and what in ("kill", "exit", "raise", "vanish"):
    while not gone.exists():
        time.sleep(0.05)
    time.sleep(1)  # the work that goes on after the other group's end
    sys.stdout.write("finished\\n")
"""


DAEMONS = """
import os, subprocess, sys, time
from pathlib import Path

folder, group = Path(sys.argv[1]), os.environ["HYBRIDPS_GROUP_INDEX"]
starts = "import subprocess; print(subprocess.Popen(['sleep', '60'], start_new_session=True, stdout=-3, stderr=-3).pid)"
pid = subprocess.run([sys.executable, "-c", starts], capture_output=True, text=True).stdout
(folder / f"{group}.new").write_text(pid)
(folder / f"{group}.new").rename(folder / group)


def there(group):
    return Path("/proc", (folder / group).read_text().strip()).exists()


while not all((folder / each).exists() for each in "01"):
    time.sleep(0.05)
if group == "1":
    end = time.monotonic() + 20
    while there("0") and time.monotonic() < end:
        time.sleep(0.05)
    print(*(f"{each} is {'there' if there(each) else 'gone'}" for each in "01"), sep=", ", flush=True)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


def command_line(script: Path, what: str, *options: str) -> list[str]:
    run = [sys.executable, "-m", "hybridps.cli", "run", *options, "--", "python", "-m", "mpi4py"]
    return [*run, str(script), what, str(script.parent / "gone")]


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("HYBRIDPS_", "OMP_NUM"))}


def launch(script: Path, what: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = command_line(script, what, *options)
    return subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=SECONDS)


TWO_GROUPS = ("-np", "4", "--groups", "2", "-s", "0")


def test_each_group_is_told_what_it_is(script: Path) -> None:
    done = launch(script, "settings", "-n", "3", "--groups", "2", "-s", "0", "--set", "tau=7", "--algorithm", "gossip")
    assert (done.returncode, after_first_line(done.stderr)) == (0, "")
    told = [line for line in done.stdout.splitlines() if "HYBRIDPS_" in line]
    assert len(told) == 3
    for group in (0, 1):
        mine = next(line for line in told if line.startswith(f"[group {group}] "))
        assert f"HYBRIDPS_GROUP_INDEX={group} HYBRIDPS_GROUP_SIZES=2,1" in mine
        assert "HYBRIDPS_TAU=7" in mine
        assert "HYBRIDPS_ALGORITHM=gossip" in mine


HOSTS = """# the cluster
localhost slots=2 max_slots=4  # first

  127.0.0.1:1
"""
SCONTROL = """#!/bin/sh
echo "$3" | tr , '\\n'
"""


@pytest.mark.parametrize("which", ["local.sh", "hostfile.sh", "slurm.sbatch"])
def test_the_scripts_of_launch(script: Path, tmp_path: Path, which: str) -> None:
    """SLURM's own command, which is not here, is the one that is made up."""
    (tmp_path / "hosts").write_text(HOSTS)
    (tmp_path / "scontrol").write_text(SCONTROL)
    (tmp_path / "scontrol").chmod(0o755)
    arguments = {"local.sh": ["3", "2"], "hostfile.sh": [str(tmp_path / "hosts")], "slurm.sbatch": []}[which]
    slurm = {"SLURM_NTASKS_PER_NODE": "1", "SLURM_TASKS_PER_NODE": "1(x2)", "SLURM_JOB_ID": "17"}
    told = {"RUN": str(tmp_path / "a run"), "SERVERS": "1", "SLURM_JOB_NODELIST": "localhost,127.0.0.1", **slurm}
    paths = os.pathsep.join([str(tmp_path), str(Path(sys.executable).parent), os.environ["PATH"]])
    command = [str(LAUNCH / which), *arguments, *command_line(script, "settings")[5:]]
    done = subprocess.run(
        command, env=environment() | told | {"PATH": paths}, capture_output=True, text=True, timeout=SECONDS
    )
    assert done.returncode == 0, done.stderr
    sizes = "1,1" if which == "slurm.sbatch" else "2,1"
    lines = [line for line in done.stdout.splitlines() if "HYBRIDPS_ALGORITHM" in line]
    assert len(lines) == sum(map(int, sizes.split(",")))
    assert all(f"HYBRIDPS_GROUP_SIZES={sizes}" in line for line in lines)
    assert all("HYBRIDPS_ALGORITHM=elastic" in line and f"HYBRIDPS_RUN_FOLDER={told['RUN']}" in line for line in lines)


@pytest.mark.parametrize("which", ["local.sh", "hostfile.sh", "slurm.sbatch"])
def test_the_scripts_of_launch_say_how_they_are_used(which: str) -> None:
    done = subprocess.run([str(LAUNCH / which)], capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 2
    assert f"launch/{which}" in done.stderr
    assert "INSECURE" in done.stderr or which == "local.sh"
    assert "set -e" not in done.stderr


def test_a_launcher_under_nohup_outlives_its_terminal(script: Path) -> None:
    command = ["nohup", *command_line(script, "settings", "-n", "1")]
    with subprocess.Popen(command, env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as launcher:
        assert b"up 0" in launcher.stdout.readline()  # type: ignore[union-attr]
        launcher.send_signal(signal.SIGHUP)
        assert launcher.wait(SECONDS) == 0


def test_a_group_that_ends_ends_what_it_left_and_nothing_of_the_others(tmp_path: Path) -> None:
    path = tmp_path / "daemons.py"
    path.write_text(DAEMONS)
    run = [sys.executable, "-m", "hybridps.cli", "run", "-n", "2", "--groups", "2", "-s", "0", "--"]
    command = [*run, "python", "-m", "mpi4py", str(path), str(tmp_path)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=SECONDS)
    assert (done.returncode, after_first_line(done.stderr)) == (0, "")
    assert "0 is gone, 1 is there" in done.stdout
    assert not psutil.pid_exists(int((tmp_path / "1").read_text()))


def test_a_progress_bar_leaves_one_line_in_a_pipe_and_the_last_line_is_kept(script: Path) -> None:
    done = launch(script, "bar")
    assert done.returncode == 0
    assert done.stdout.splitlines() == ["[group 0] up 0", "[group 0] 100%", "[group 0] without an end"]


RULE = "all workers must make the same stores and do the same steps"


@pytest.mark.parametrize(
    ("what", "status", "words"),
    [
        ("kill", 137, "exit status 137 (worker 3 killed by signal 9)"),
        ("exit", 3, "exit status 3 of worker 3"),
        pytest.param("raise", 1, "exit status 1 of worker 3", marks=pytest.mark.nightly),
        ("vanish", 1, f"exit status 1 (worker 3 exited before its part of the job was done: {RULE})"),
    ],
)
def test_a_group_fails_with_one_message_and_the_other_goes_on(script: Path, what: str, status: int, words: str) -> None:
    began = time.monotonic()
    done = launch(script, what, *TWO_GROUPS)
    assert done.returncode == status
    own = [line for line in after_first_line(done.stderr).splitlines() if not line.startswith("[group 1]")]
    assert own == [
        f"hybridps: group 1 ended with {words}; the other groups go on",
        f"hybridps: the job ends with status {status}, because group 1 failed",
    ]
    assert "-----" not in done.stderr
    assert done.stderr.count("RuntimeError: boom") == (what == "raise")
    assert done.stdout.count("[group 0] finished") == 2
    assert time.monotonic() - began < 20


def test_at_mxnet_s_servers_a_group_that_fails_ends_the_others(script: Path) -> None:
    done = launch(script, "kill", *TWO_GROUPS, "--backend", "mxnet")
    assert done.returncode == 137
    assert "exit status 137 (worker 3 killed by signal 9); stopping the others" in done.stderr
    assert "finished" not in done.stdout


TRAINS = """
import time
import numpy as np
from hybridps.job import open_job
from hybridps.step import ArrayModel

with open_job() as job, ArrayModel(job.algorithm(), job.session, {"weight": np.zeros(10, "float32")}) as model:
    for step in range(10_000):
        model.reduce()
        if step == 1:
            print("up", flush=True)
        time.sleep(0.01)
"""


class Launched:
    """A launcher whose ranks are all up, and everything that it started."""

    def __init__(self, command: list[str], ranks: int, extra: dict[str, str] | None = None) -> None:
        self.popen = subprocess.Popen(
            command, env=environment() | (extra or {}), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert self.popen.stdout is not None
        self.output = self.popen.stdout
        while ranks:
            line = self.output.readline()
            assert line, "the launcher ended early"
            ranks -= "] up" in line
        self.started = psutil.Process(self.popen.pid).children(recursive=True)

    def end(self) -> tuple[int, str]:
        """Its exit status and the rest of its output; all that it started must be gone."""
        status = self.popen.wait(timeout=15)
        _, alive = psutil.wait_procs(self.started, timeout=10)
        assert alive == []
        return status, self.output.read()

    def clean(self) -> None:
        """Leave nothing behind, whatever the test found."""
        self.popen.kill()
        self.popen.wait()
        self.output.close()
        for child in self.started:
            if child.is_running():
                child.kill()


@pytest.fixture
def launched(script: Path) -> Iterator[Launched]:
    process = Launched(command_line(script, "wait", *TWO_GROUPS), ranks=4, extra={"TMPDIR": str(script.parent)})
    yield process
    process.clean()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_leaves_no_process_behind(launched: Launched, number: signal.Signals, status: int) -> None:
    assert len(launched.started) >= 6
    launched.popen.send_signal(number)
    assert launched.end() == (status, f"hybridps: {number.name}: stopping 2 groups and 0 servers\n")


def test_a_killed_launcher_leaves_no_process_behind(launched: Launched) -> None:
    launched.popen.kill()
    assert launched.end()[0] == -signal.SIGKILL


def test_a_killed_mpirun_leaves_no_rank_and_no_file_behind(launched: Launched, script: Path) -> None:
    if is_open_mpi():
        assert len(list(script.parent.glob("hybridps-*/ompi.*"))) == 2, "where mpirun keeps its files"
    for mpirun in psutil.Process(launched.popen.pid).children():
        mpirun.kill()
    status, output = launched.end()
    assert status == 137
    assert output.count("ended with exit status 137 (killed by signal 9)") == 2
    assert list(script.parent.iterdir()) == [script]


def test_ranks_that_ignore_the_interrupt_are_ended() -> None:
    stubborn = "trap '' TERM INT HUP; echo up; sleep 61 & wait; sleep 62"
    command = [sys.executable, "-m", "hybridps.cli", "run", "-n", "2", "--", "bash", "-c", stubborn]
    launched = Launched(command, ranks=2)
    try:
        launched.popen.send_signal(signal.SIGINT)
        assert launched.end()[0] == 130
    finally:
        launched.clean()


def server_of(launched: Launched) -> psutil.Process:
    return next(child for child in psutil.Process(launched.popen.pid).children() if "serve" in child.cmdline())


def test_a_server_is_started_found_and_stopped(script: Path) -> None:
    done = launch(script, "settings", "-n", "2", "--groups", "2", "--servers", "2")
    assert done.returncode == 0
    served = [line.rpartition(" ")[2] for line in done.stdout.splitlines() if "hybridps: serving at" in line]
    assert len(served) == 2
    addresses = {f"HYBRIDPS_SERVERS={','.join(order)}" for order in (served, served[::-1])}
    told = [word for line in done.stdout.splitlines() for word in line.split() if word.startswith("HYBRIDPS_SERVERS")]
    assert len(told) == 2
    assert told[0] == told[1]
    assert told[0] in addresses


def test_a_dead_server_is_one_message_and_the_groups_go_on(script: Path) -> None:
    launched = Launched(command_line(script, "wait", "-n", "2", "--groups", "2"), ranks=2)
    try:
        server_of(launched).kill()
        line = launched.output.readline()
        killed = "hybridps: server 0 ended with exit status 137 (killed by signal 9)"
        assert line == f"{killed}; groups that need it end after 10 s\n"
        launched.popen.send_signal(signal.SIGTERM)
        assert launched.end() == (143, "hybridps: SIGTERM: stopping 2 groups and 0 servers\n")
    finally:
        launched.clean()


def test_groups_are_not_restarted_where_their_server_is_gone_for_good(tmp_path: Path) -> None:
    """Its supervisor is killed, so nothing starts it again."""
    script = tmp_path / "trains.py"
    script.write_text(TRAINS)
    options = ["-n", "2", "--groups", "2", "--restarts", "2", "--set", "lost_seconds=2"]
    run = [sys.executable, "-m", "hybridps", "run", *options, "--", "python", str(script)]
    launched = Launched(run, ranks=2)
    try:
        server_of(launched).kill()
        status, said = launched.end()
        assert status != 0
        assert said.count("not started again, because server 0 has ended") == 2
        assert "of 2" not in said
    finally:
        launched.clean()


def test_a_killed_launcher_leaves_no_server_behind(script: Path) -> None:
    launched = Launched(command_line(script, "wait", "-n", "2", "--groups", "2"), ranks=2)
    try:
        server = server_of(launched)
        launched.popen.kill()
        launched.end()
        assert not server.is_running()
    finally:
        launched.clean()


def test_servers_on_the_network_get_keys_for_this_launch(tmp_path: Path) -> None:
    """As for other hosts: this one by its address on the network."""
    address = own_address()
    if not address:
        pytest.skip("this host has no address but the loopback")
    script = tmp_path / "sum.py"
    script.write_text(SUM)
    run = [sys.executable, "-m", "hybridps", "run", "-H", f"{address}:2", "--groups", "2", "--", "python", str(script)]
    environ = environment() | {"TMPDIR": str(tmp_path)}
    done = subprocess.run(run, env=environ, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    assert f"[server 0] hybridps: serving at tcp://{address}:" in done.stdout
    assert [f"[group {group}] sum 2.0" in done.stdout for group in (0, 1)] == [True, True]
    assert "CREDENTIALS" not in done.stdout + done.stderr
    assert not list(tmp_path.glob("hybridps-*")), "the keys are still there"


def own_address() -> str:
    """Of this host, not the loopback; empty if it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # a datagram socket: this sends nothing
        except OSError:
            return ""
        found = str(probe.getsockname()[0])
    return "" if found.startswith("127.") else found
