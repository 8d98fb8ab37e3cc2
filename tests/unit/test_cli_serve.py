"""`hybridps serve` as a process."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from hybridps.cli.told import AGAIN
from hybridps.cli.top.servers import read
from hybridps.config import Settings
from hybridps.errors import ServerError
from hybridps.memory import Layout
from hybridps.processes import SAYS
from hybridps.ps.client import Client
from hybridps.ps.keys import make_tenant
from hybridps.ps.rules import Sum

BACK_SECONDS = 2.0
"""A server that was killed serves again within this time."""

END_SECONDS = 60.0
"""So long the end of a process may take: on a loaded machine the interpreter alone takes many seconds."""

LAYOUT = Layout.of("float32", {"w": (16,)})


class Served(subprocess.Popen[str]):
    """Killed where a test fails: it would be waited for."""

    def __exit__(self, failed: type[BaseException] | None, *details: Any) -> None:
        if failed is not None:
            self.kill()
        super().__exit__(failed, *details)


def serve(*arguments: str, **more: str) -> Served:
    environ = os.environ | more
    command = [sys.executable, "-m", "hybridps", "serve", *arguments]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return Served(command, env=environ, text=True, **pipes)  # type: ignore[call-overload]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_where_it_serves_and_ends_cleanly(number: signal.Signals) -> None:
    with serve() as server:
        assert server.stdout is not None
        assert re.fullmatch(r"hybridps: serving at tcp://127\.0\.0\.1:\d+\n", server.stdout.readline())
        server.send_signal(number)
        assert server.communicate(timeout=END_SECONDS) == ("", "")
        assert server.returncode == 0


@pytest.mark.timeout(120)
@pytest.mark.parametrize("address", ["tcp://0.0.0.0:*", "nonsense"])
def test_an_address_that_cannot_be_used_is_one_line_and_status_2(address: str) -> None:
    with serve("--bind", address) as server:
        out, err = server.communicate(timeout=END_SECONDS)
    assert (server.returncode, out) == (2, "")
    assert re.fullmatch(r"hybridps: error: .*\n", err)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("arguments", "environ", "said"),
    [
        (["--lost-seconds", "0"], {}, "HYBRIDPS_LOST_SECONDS='0.0'"),
        (
            ["--lost-seconds", "inf"],
            {},
            "HYBRIDPS_LOST_SECONDS='inf' cannot be used: expected a number of seconds > 0 ",
        ),
        (["--bind", "tcp://127.0.0.1:22x"], {}, "--bind 'tcp://127.0.0.1:22x' cannot be used: the port '22x' must be"),
        (["--metrics-port", "0", "--metrics-bind", "127.0.0.1:9"], {}, "HYBRIDPS_METRICS_BIND='127.0.0.1:9'"),
        ([], {"HYBRIDPS_PARENTS": "tcp://127.0.0.1:22x"}, "HYBRIDPS_PARENTS='tcp://127.0.0.1:22x' cannot be used"),
        (["--stop-after-groups", "2"], {"OMPI_COMM_WORLD_SIZE": "2"}, "--stop-after-groups"),
        (["--restarts", "2"], {"OMPI_COMM_WORLD_SIZE": "2"}, "--restarts 2 cannot be used: a server that is a rank"),
        (["--restarts", "2"], {"HYBRIDPS_BACKEND": "mxnet"}, "--restarts 2 cannot be used: MXNet's servers lose"),
        (["--restarts", "2"], {"HYBRIDPS_PARENTS": "tcp://a:1"}, "--restarts 2 cannot be used: a server with parents"),
        (["--snapshots", "s"], {"HYBRIDPS_BACKEND": "mxnet"}, "s cannot be used: MXNet's servers take no snapshots"),
        (["--snapshots", "s"], {"HYBRIDPS_PARENTS": "tcp://a:1"}, "s cannot be used: the servers of racks take no"),
        (["--snapshots", "/dev/null/x"], {}, "the folder of snapshots /dev/null/x cannot be used: Not a directory"),
        (["--snapshot-seconds", "0"], {}, "HYBRIDPS_SNAPSHOT_SECONDS='0.0' cannot be used"),
        (["--restarts", "2", "--bind", "tcp://0.0.0.0:*"], {}, "tcp://0.0.0.0:* can be reached from other hosts"),
    ],
)
def test_what_has_no_meaning_is_refused(arguments: list[str], environ: dict[str, str], said: str) -> None:
    with serve(*arguments, **environ) as server:
        out, error = server.communicate(timeout=END_SECONDS)
    assert (out, server.returncode) == ("", 2)
    assert said in error


def line_of(server: subprocess.Popen[str], begin: str, errors: bool = False) -> str:
    """The next line that a server prints, without how it must begin."""
    pipe = server.stderr if errors else server.stdout
    assert pipe is not None
    line = pipe.readline()
    assert line.startswith(begin), line
    return line.removeprefix(begin).rstrip("\n")


def life_of(server: subprocess.Popen[str]) -> psutil.Process:
    """The process that serves, of one that is started again."""
    (child,) = psutil.Process(server.pid).children()
    return child


def kill_life(server: subprocess.Popen[str], restart: str) -> None:
    """Kill it, and wait until it is back."""
    life_of(server).kill()
    said = f"hybridps: the server was killed by signal 9; restarted, {restart}; its tables are kept"
    assert line_of(server, said, errors=True) == ""
    line_of(server, "hybridps: the server is back at ", errors=True)


def client(address: str, group: int = 0, groups: int = 1, **more: object) -> Client:
    settings = Settings(connect_seconds=BACK_SECONDS, deadline_seconds=600.0, lost_seconds=600.0, **more)  # type: ignore[arg-type]
    return Client([address], job="job", group=group, groups=groups, settings=settings)


def exchange_ones(store: Client) -> None:
    store.register("w", LAYOUT, np.zeros(16, np.float32), Sum())
    values = np.ones(16, np.float32)
    store.exchange("w", values, values, 0, 16).wait()
    assert values.tolist() == [1.0] * 16


@pytest.mark.timeout(120)
def test_a_server_that_is_killed_is_back_at_its_address() -> None:
    with serve("--restarts", "2", "--bind", "tcp://127.0.0.1:*") as server:
        address = line_of(server, SAYS)
        for restart in ("1 of 2", "2 of 2"):
            with client(address) as store:
                exchange_ones(store)
            began = time.monotonic()
            kill_life(server, restart)
            with client(address) as store:
                assert time.monotonic() - began < BACK_SECONDS
                exchange_ones(store)
        life_of(server).kill()
        out, error = server.communicate(timeout=END_SECONDS)
    assert server.returncode == 137
    assert out == "", "the address is printed once"
    assert re.fullmatch("hybridps: the server was killed by signal 9; .*\n", error)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("lives", [1, 2])
def test_a_server_with_restarts_ends_cleanly(number: signal.Signals, lives: int) -> None:
    with serve("--restarts", "3") as server:
        address = line_of(server, SAYS)
        for _ in range(1, lives):
            with client(address) as store:
                exchange_ones(store)  # it has gone on after its line, which it would print again otherwise
            kill_life(server, "1 of 3")
        life = life_of(server)
        server.send_signal(number)
        assert server.communicate(timeout=END_SECONDS) == ("", "")
        assert server.returncode == 0
    assert not life.is_running()


@pytest.mark.timeout(120)
def test_a_life_ends_with_its_supervisor() -> None:
    with serve("--restarts", "3") as server:
        line_of(server, SAYS)
        life = life_of(server)
        server.kill()
    assert psutil.wait_procs([life], timeout=END_SECONDS)[1] == []


@pytest.mark.timeout(120)
def test_a_hangup_ends_it_unless_it_is_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # it may be ignored here, as under nohup
    try:
        server = serve("--restarts", "3")
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        ignoring = serve("--restarts", "3")  # inherits it
    finally:
        signal.signal(signal.SIGHUP, before)
    with server:
        line_of(server, SAYS)
        server.send_signal(signal.SIGHUP)
        assert server.wait(END_SECONDS) == 128 + signal.SIGHUP
    server = ignoring
    with server:
        address = line_of(server, SAYS)
        server.send_signal(signal.SIGHUP)
        with client(address) as store:
            exchange_ones(store)
        server.terminate()
        assert server.wait(END_SECONDS) == 0


@pytest.mark.timeout(120)
def test_a_later_life_is_told_of_groups_that_have_ended() -> None:
    with serve("--restarts", "1", "--told-ends") as server:
        address = line_of(server, SAYS)
        kill_life(server, "1 of 1")
        first, second = (client(address, group, 2) for group in (0, 1))
        for store in (first, second):
            store.register("w", LAYOUT, np.zeros(16, np.float32), Sum())
        answer = np.zeros(16, np.float32)
        waiting = first.exchange("w", np.ones(16, np.float32), answer, 0, 16)
        assert server.stdin is not None
        server.stdin.write("end nobody 1 0\nend job 1 0\n")
        server.stdin.flush()
        waiting.wait()
        assert answer.tolist() == [1.0] * 16
        with pytest.raises(ServerError, match="register again"):
            second.exchange("w", answer, answer, 0, 16).wait()
        first.close()
        second.close(lost=True)
        server.terminate()


@pytest.mark.timeout(120)
def test_a_later_life_has_the_keys_and_the_metrics_of_the_first_one(tmp_path: Path) -> None:
    theirs = make_tenant(tmp_path / "keys", "alice")
    mine = shutil.copytree(theirs, tmp_path / "mine")
    with serve("--restarts", "1", "--metrics-port", "0", "--keys", str(tmp_path / "keys")) as server:
        address, url = line_of(server, SAYS), line_of(server, "hybridps: metrics at ")
        shutil.rmtree(tmp_path / "keys")  # as `hybridps run` does with keys that are made for a launch
        kill_life(server, "1 of 1")
        with client(address, keys=str(mine)) as store:
            exchange_ones(store)
        assert read(url)
        server.terminate()
        assert server.wait(END_SECONDS) == 0


@pytest.mark.timeout(120)
def test_a_later_life_asks_to_be_told_again_what_an_earlier_one_may_have_read_and_not_kept() -> None:
    with serve("--restarts", "1", "--told-ends") as server:
        line_of(server, SAYS)
        kill_life(server, "1 of 1")
        assert server.stdout is not None
        # The first life may have been killed before it noted that it had said its address: that is said again then.
        assert f"{AGAIN}\n" in iter(server.stdout.readline, "")
        server.terminate()
        assert server.wait(END_SECONDS) == 0
