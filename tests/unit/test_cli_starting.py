"""How the launcher counts the ranks that run, and what it says of a group that does not start."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from hybridps.cli.run.groups.starting import RUNS, Starting, announced
from hybridps.cli.run.plan import GroupLaunch
from hybridps.cli.run.plan.hosts import parse_hosts

GROUPS = (GroupLaunch(0, 2, (), 3), GroupLaunch(1, 1, parse_hosts("node1:1"), 4))


@pytest.mark.parametrize(
    "command",
    [
        [sys.executable, "-c", "import os, signal; print(os.environ['A B'], signal.getsignal(signal.SIGPIPE) == 0)"],
        ["bash", "-c", "printenv 'A B' | tr '\\n' ' '; echo $0", "False"],
    ],
)
def test_a_rank_says_that_it_runs_and_becomes_its_program(command: list[str]) -> None:
    """In the same environment. Python itself ignores SIGPIPE, whatever it inherits."""
    words = announced(command)
    done = subprocess.run(words, env=os.environ | {"A B": "x"}, capture_output=True, text=True, timeout=20)
    assert (done.returncode, done.stdout.splitlines()) == (0, [RUNS, "x False"])


def test_signals_are_as_the_program_would_have_found_them() -> None:
    shell = ["bash", "-c", "kill -PIPE $$; echo still here"]
    done = subprocess.run(announced([sys.executable])[:5] + tuple(shell), capture_output=True, text=True, timeout=20)
    assert (done.returncode, done.stdout) == (-signal.SIGPIPE, f"{RUNS}\n")


@pytest.mark.parametrize("command", [["./train"], ["apptainer", "exec", "image", "python", "train.py"]])
def test_programs_that_cannot_say_so_are_left_alone(command: list[str]) -> None:
    assert announced(command) == ()


def test_groups_are_late_until_all_of_their_ranks_run() -> None:
    starting = Starting(GROUPS, 0.0)
    assert starting.late() == [0, 1]
    assert starting.hear(0, RUNS) == ""
    assert starting.hear(0, f"10 % {RUNS}") == "10 % "
    assert starting.late() == [1]
    assert starting.hear(1, f"{RUNS}, it says") is None
    assert starting.late() == [1]
    starting.hear(1, RUNS)
    assert starting.late() == []


def test_nobody_is_late_before_the_deadline() -> None:
    assert Starting(GROUPS, 1e6).late() == []


def test_a_group_that_is_late_is_described() -> None:
    starting = Starting(GROUPS, 60.0)
    starting.hear(0, RUNS)
    assert "group 3 has not started: mpirun runs 1 of its 2 ranks after 60 s" in starting.describe(0)
    said = starting.describe(1)
    assert "0 of its 1 ranks on node1 after 60 s" in said
    assert "`ssh node1 true`" in said
    assert "--set start_seconds=120" in said
