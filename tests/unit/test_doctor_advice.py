"""`hybridps doctor`: each problem ends with what to type. tests/unit/test_wheel.py types what installs a package."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

import pytest

from hybridps.cli import doctor
from hybridps.cli.doctor import LATE, NOTE, PROBLEM, Done, Finding, check_python, judge_hello

ROOT = Path(__file__).parents[2]
RANK = {"size": 2, "sum": 3, "sharing": 2, "level": "MULTIPLE", "library": "Open MPI v5"}


def of_ranks(**changed: object) -> Finding:
    return judge_hello(Done("", 0, (json.dumps(RANK | changed) + "\n") * 2, ""))


PROBLEMS = {
    "mpirun hangs": judge_hello(Done("", LATE, "", "late")),
    "no MPI library": judge_hello(Done("", 1, "", "ImportError: libmpi.so")),
    "two MPI libraries": of_ranks(size=1, sum=1, sharing=1),
    "no threads": of_ranks(level="SINGLE"),
    "a module that cannot be imported": doctor._check_import("X", "no_such", "1", "`pip install x`", PROBLEM),
}


NOTES = {"a Python without MXNet": check_python((3, 12))}


@pytest.mark.parametrize("finding", (PROBLEMS | NOTES).values(), ids=PROBLEMS | NOTES)
def test_a_problem_and_a_note_have_something_to_type(finding):
    assert finding.state == (PROBLEM if finding in PROBLEMS.values() else NOTE)
    typed = re.findall(r"`([^`]+)`", finding.advice)
    assert typed
    settings = ConfigParser()
    settings.read(ROOT / "setup.cfg")
    for extras in re.findall(r"hybridps\[([\w,]+)\]", finding.advice):
        assert set(extras.split(",")) <= set(settings["options.extras_require"])


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="namespaces need root and util-linux")
def test_what_it_says_about_a_loopback_that_is_down_helps():
    """In a network of its own, where nothing is up, the command is typed between two checks."""
    check = f"{sys.executable} -c 'from hybridps.cli.doctor import check_port as c; print(*c(), sep=\"|\")'"
    environ = os.environ | {"PYTHONPATH": str(ROOT)}

    def in_namespace(script: str) -> list[str]:
        command = ["unshare", "--net", "bash", "-c", script]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=True)
        return done.stdout.splitlines()

    (before,) = in_namespace(check)
    assert before.startswith("loopback|problem|")
    (typed,) = re.findall(r"`([^`]+)`", before)
    assert in_namespace(f"{typed}; {check}")[-1].startswith("loopback|ok|")
