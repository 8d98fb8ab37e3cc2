"""The way of a gradient in docs/design.md is the one that a run takes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SECTION = (ROOT / "docs" / "design.md").read_text().split("\n## The way of a gradient\n")[1].split("\n## ")[0]
STARTS_THREADS = {"step/arrays.py", "mpi_groups/threads.py", "ps/server/server.py"}
"""What trains in the trace, the threads that it trains in, and the thread of the server."""


def files(text: str) -> list[str]:
    return re.findall(r"`([\w/]+\.py)`", text)


STATIONS = files("\n".join(re.findall(r"^\| \d+ \|.*$", SECTION, re.MULTILINE)))
SENT = SECTION.split("\nWhere values are sent")[1].split("\n\n")[0]


def traced(*options: str) -> set[str]:
    """Files on the call stacks at the points that a gradient passes in a warm step."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.trace_way", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    stacks = re.findall(r"^[\w ]+: (.*\.py)$", done.stdout, re.MULTILINE)
    return {name for stack in stacks for name in stack.split(" > ")} - STARTS_THREADS


def test_the_way_has_at_most_14_files() -> None:
    assert len(STATIONS) == len(set(STATIONS)) == 14
    assert all((ROOT / "hybridps" / name).exists() for name in (*STATIONS, *files(SENT)))


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("options", "more"), [((), set()), (("--sent",), set(files(SENT)))])
def test_a_run_takes_the_way(options: tuple[str, ...], more: set[str]) -> None:
    assert traced(*options) == set(STATIONS) | more
