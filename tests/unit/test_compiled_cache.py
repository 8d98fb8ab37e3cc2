"""Processes that need the same compiled function at the same time: one compiles it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(100)

SOURCE = """
import sys
from hybridps.compiled import compiled

@compiled
def inner(x):
    total = x
    for i in range(10):
        total += i * x
    return total

@compiled
def outer(x):
    return inner(x) + inner(x + 1)

if __name__ == "__main__":
    sys.stdin.readline()
    assert outer(float(sys.argv[1])) == 92.0 * float(sys.argv[1]) + 46.0, outer(float(sys.argv[1]))
    outer(1)
    print(sum(outer.stats.cache_misses.values()), sum(outer.stats.cache_hits.values()))
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "loops.py"
    path.write_text(SOURCE)
    return path


def start(script: Path) -> subprocess.Popen[str]:
    environ = os.environ | {"NUMBA_CACHE_DIR": str(script.parent / "cache")}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, str(script), "2.0"], env=environ, **pipes)  # type: ignore[call-overload]


def counts(processes: list[subprocess.Popen[str]]) -> list[tuple[int, int]]:
    """The functions that each process has compiled, and those that it has loaded."""
    found = []
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    for process in processes:
        said, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        misses, hits = map(int, said.split())
        found.append((misses, hits))
    return found


def test_each_signature_is_compiled_once(script: Path) -> None:
    found = counts([start(script) for _ in range(4)])
    assert sum(misses for misses, _ in found) == 2, found
    assert all(misses + hits == 2 for misses, hits in found)
    assert counts([start(script)]) == [(0, 2)]


def test_a_process_that_is_killed_while_it_compiles_holds_nobody_up(script: Path) -> None:
    first = start(script)
    first.stdin.write("\n")
    first.stdin.flush()
    end = time.monotonic() + 30
    while not list((script.parent / "cache").rglob("*.lock")):
        assert time.monotonic() < end
        time.sleep(0.001)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    began = time.monotonic()
    ((misses, hits),) = counts([start(script)])
    assert misses + hits == 2
    assert time.monotonic() - began < 60


def test_a_folder_that_cannot_be_written_is_no_error(script: Path) -> None:
    (script.parent / "cache").write_text("")
    assert counts([start(script)]) == [(2, 0)]
