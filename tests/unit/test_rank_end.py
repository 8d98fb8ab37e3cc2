"""The end of a rank: what it has written is read, and how it ended is told."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from hybridps.cli.run.children.rank_ends import RankEnds, Verdict
from hybridps.errors import FAILED
from hybridps.mpi_groups import rank_end
from hybridps.mpi_groups.rank_end import SAYS

STUBBORN = """
import os, signal, sys, time
for number in (signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, lambda number, frame: os.write(1, f"got {number}\\n".encode()))
print("up", flush=True)
time.sleep(60 if sys.argv[1] == "stay" else 1)
"""


def start(*program: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-I", "-S", rank_end.__file__, sys.executable, "-c", *program],
        env=os.environ | {"PMI_RANK": "5"},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.parametrize(
    ("program", "status"),
    [
        ("", 0),
        ("import os; os._exit(3)", 3),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", 137),
        ("import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)", 0),
        ("import signal; assert not signal.pthread_sigmask(signal.SIG_BLOCK, [])", 0),
    ],
)
def test_a_rank_says_how_it_ended(program: str, status: int) -> None:
    with start(program) as process:
        said = process.communicate(timeout=20)[0].splitlines()
    assert (process.returncode, said[-1]) == (status, SAYS.format(5, status))
    assert said[:-1] in ([], ["True"])


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_a_signal_for_all_processes_of_the_rank_reaches_its_program_once(number: signal.Signals) -> None:
    """The program ends by itself afterwards, and the rank says so, also after the signal with which mpirun ends it."""
    with start(STUBBORN, "end") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        os.killpg(process.pid, number)
        rest = process.communicate(timeout=20)[0].splitlines()
    assert rest == [f"got {number:d}", SAYS.format(5, 0)]


def test_a_rank_that_mpirun_ends_says_nothing() -> None:
    with start("import time; print('up', flush=True); time.sleep(60)") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        os.killpg(process.pid, signal.SIGTERM)
        assert process.communicate(timeout=20)[0] == ""
    assert process.returncode == 128 + signal.SIGTERM


def test_the_program_of_a_rank_does_not_outlive_the_process_that_waits() -> None:
    with start(STUBBORN, "stay") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.kill()
        assert process.communicate(timeout=20)[0] == ""  # its program has ended, which closes the pipe


def test_what_was_written_is_read_before_the_end() -> None:
    """The same in a process of its own, because its standard output is the pipe."""
    program = "import os, time; from hybridps.mpi_groups.rank_end import wait_for_reader; "
    program += "os.write(1, b'x'); wait_for_reader(9); print(time.monotonic())"
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        time.sleep(1.5)
        read_at = time.monotonic()
        assert os.read(process.stdout.fileno(), 1) == b"x"
        assert float(process.stdout.read()) >= read_at


def test_a_world_is_ended_without_destructors_and_keeps_its_status() -> None:
    program = "import ctypes; from hybridps.mpi_groups.rank_end import end_world; libc = ctypes.CDLL(None); "
    program += "libc.on_exit(ctypes.cast(libc.abort, ctypes.c_void_p), None); "
    command = [sys.executable, "-c"]
    assert subprocess.run([*command, f"{program} end_world(libc.exit, 4)"], timeout=20).returncode == 4
    assert subprocess.run([*command, f"{program} libc.exit(4)"], timeout=20).returncode == -signal.SIGABRT


def test_a_program_that_is_not_there_is_named() -> None:
    command = [sys.executable, "-I", "-S", rank_end.__file__, "./absent"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    assert (done.returncode, done.stderr) == (
        127,
        "hybridps: error: ./absent cannot be started: No such file or directory\n",
    )


def test_a_reader_that_is_paused_is_not_waited_for_long() -> None:
    read, written = os.pipe()
    before = os.dup(1)
    os.dup2(written, 1)
    try:
        os.write(1, b"x")
        waits = threading.Thread(target=rank_end.wait_for_reader, args=(0.05,))
        waits.start()
        waits.join(20)
        assert not waits.is_alive()
    finally:
        os.dup2(before, 1)
        for file in (before, read, written):
            os.close(file)


@pytest.mark.parametrize(
    ("lines", "status", "verdict"),
    [
        ([(0, 0), (1, 0)], 0, Verdict(0)),
        ([(1, 3)], 255, Verdict(3, 1)),
        ([(0, 0), (1, 137)], 137, Verdict(137, 1)),
        ([(1, 137), (0, 143)], 137, Verdict(137, 1)),
        ([(1, 0)], 0, Verdict(FAILED, 1, vanished=True)),
        ([(1, 0)], 255, Verdict(FAILED, 1, vanished=True)),
        ([(0, 0)], 4, Verdict(4)),
        ([], 255, Verdict(255)),
        ([], 0, Verdict(0)),
    ],
)
def test_the_first_rank_that_failed_is_found(lines: list[tuple[int, int]], status: int, verdict: Verdict) -> None:
    ends = RankEnds(2)
    assert [ends.hear(SAYS.format(*line)) for line in lines] == [""] * len(lines)
    assert ends.hear(f"no end{SAYS.format(1, 0)}") == "no end"
    assert ends.hear("a line of a rank") is None
    ends = RankEnds(2)
    for line in lines:
        ends.hear(SAYS.format(*line))
    assert ends.judge(status) == verdict
    if not any(own for _, own in lines):
        assert ends.judge(status, was_killed=True) == Verdict(status)


def test_a_rank_that_failed_long_ago_is_overdue(monkeypatch: pytest.MonkeyPatch) -> None:
    ends, now = RankEnds(3), [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    ends.hear(SAYS.format(0, 0))
    now[0] += 10
    assert not ends.is_overdue
    ends.hear(SAYS.format(1, 3))
    assert not ends.is_overdue
    now[0] += 4
    ends.hear(SAYS.format(2, 3))
    now[0] += 2
    assert ends.is_overdue


HANGS = """
import io, os, signal
from hybridps.cli.run.children import rank_ends
from hybridps.cli.run.children.output import Screen
from hybridps.cli.run.children.processes import Processes

rank_ends.STOP_SECONDS = 0.3
processes = Processes(Screen(io.StringIO(), io.StringIO(), ["group 0"]), lambda child: None)
command = ["sh", "-c", "echo 'hybridps: rank 1 ended with status 3'; sleep 60"]
child = processes.start("group 0", command, os.environ, death_signal=signal.SIGKILL, ends=rank_ends.RankEnds(2))
assert processes.until(lambda: child.status is not None, 20)
processes.close()
print(child.status, child.first_rank)
"""
"""Starts what waits like MPICH's mpirun, which does not always end the other ranks. It is a process of its own,
because `Processes` ends children that it does not know."""


def test_a_group_that_is_not_ended_after_a_rank_failed_is_killed() -> None:
    done = subprocess.run([sys.executable, "-c", HANGS], capture_output=True, text=True, timeout=50)
    assert (done.stdout, done.returncode) == ("3 1\n", 0), done.stderr
