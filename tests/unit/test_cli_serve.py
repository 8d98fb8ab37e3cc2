"""`hybridps serve` as a process."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys

import pytest


def serve(*arguments: str, **more: str) -> subprocess.Popen[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("HYBRIDPS_")} | more
    command = [sys.executable, "-m", "hybridps", "serve", *arguments]
    return subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_where_it_serves_and_ends_cleanly(number: signal.Signals) -> None:
    with serve() as server:
        assert server.stdout is not None
        assert re.fullmatch(r"hybridps: serving at tcp://127\.0\.0\.1:\d+\n", server.stdout.readline())
        server.send_signal(number)
        assert server.communicate(timeout=10) == ("", "")
        assert server.returncode == 0


@pytest.mark.timeout(60)
@pytest.mark.parametrize("address", ["tcp://0.0.0.0:*", "nonsense"])
def test_an_address_that_cannot_be_used_is_one_line_and_status_2(address: str) -> None:
    with serve("--bind", address) as server:
        out, err = server.communicate(timeout=30)
    assert (server.returncode, out) == (2, "")
    assert re.fullmatch(r"hybridps: error: .*\n", err)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("arguments", "environ", "said"),
    [
        (["--lost-seconds", "0"], {}, "HYBRIDPS_LOST_SECONDS='0.0'"),
        (["--lost-seconds", "inf"], {}, "HYBRIDPS_LOST_SECONDS='inf' cannot be used: expected a number > 0 and <= "),
        (["--bind", "tcp://127.0.0.1:22x"], {}, "--bind 'tcp://127.0.0.1:22x' cannot be used: the port '22x' must be"),
        (["--metrics-port", "0", "--metrics-bind", "127.0.0.1:9"], {}, "HYBRIDPS_METRICS_BIND='127.0.0.1:9'"),
        ([], {"HYBRIDPS_PARENTS": "tcp://127.0.0.1:22x"}, "HYBRIDPS_PARENTS='tcp://127.0.0.1:22x' cannot be used"),
        (["--stop-after-groups", "2"], {"OMPI_COMM_WORLD_SIZE": "2"}, "--stop-after-groups"),
    ],
)
def test_what_has_no_meaning_is_refused(arguments: list[str], environ: dict[str, str], said: str) -> None:
    with serve(*arguments, **environ) as server:
        out, error = server.communicate(timeout=30)
    assert (out, server.returncode) == ("", 2)
    assert said in error
