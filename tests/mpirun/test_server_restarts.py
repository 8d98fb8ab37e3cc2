"""`hybridps run --server-restarts`: a server that is killed is started again by itself."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from worlds import environment

pytestmark = pytest.mark.timeout(60)

WAITS = """
import pathlib, sys, time

print("up", flush=True)
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.02)
"""


@contextmanager
def launched(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str, psutil.Process]]:
    """A launch of two groups that wait, the address of its server, and the server's first process."""
    script, end = tmp_path / "waits.py", tmp_path / "end"
    script.write_text(WAITS)
    words = ["run", "-n", "2", "--groups", "2", "--server-restarts", "1", "--", "python", str(script), str(end)]
    command = [sys.executable, "-m", "hybridps.cli", *words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=environment(), text=True, **pipes) as launcher:  # type: ignore[call-overload]
        try:
            address = launcher.stdout.readline().removeprefix("[server 0] hybridps: serving at ")
            assert launcher.stderr.readline().startswith("hybridps: 2 workers (-n) in 2 groups")
            assert {launcher.stdout.readline() for _ in range(2)} == {"[group 0] up\n", "[group 1] up\n"}
            (server,) = (each for each in psutil.Process(launcher.pid).children() if "serve" in each.cmdline())
            yield launcher, address, server
        finally:
            end.touch()


def test_a_server_that_is_killed_is_said_to_be_back(tmp_path: Path) -> None:
    with launched(tmp_path) as (launcher, address, server):
        server.children()[0].kill()
        killed = "[server 0] hybridps: the server was killed by signal 9; restarted, 1 of 1; its tables are kept\n"
        assert launcher.stderr.readline() == killed
        assert launcher.stderr.readline() == f"[server 0] hybridps: the server is back at {address}"
        processes = [server, *server.children()]
        (tmp_path / "end").touch()
        assert launcher.communicate(timeout=30) == ("", "")
        assert launcher.returncode == 0
    assert psutil.wait_procs(processes, timeout=10)[1] == []


def test_a_server_ends_with_a_launcher_that_is_killed(tmp_path: Path) -> None:
    with launched(tmp_path) as (launcher, _, server):
        processes = [server, *server.children()]
        assert len(processes) == 2
        launcher.kill()
        assert psutil.wait_procs(processes, timeout=20)[1] == []
