"""MXNet's own servers: what they refuse, and that nobody waits for ever and nothing is left behind."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from worlds import environment, mpirun

from hybridps.config import Settings
from hybridps.processes import ServerProcess

pytest.importorskip("mxnet")
pytestmark = [pytest.mark.mxnet, pytest.mark.timeout(120)]

SECONDS = 60

SUM = """
import itertools, time
import numpy as np
from hybridps.job import open_job
from hybridps.kvstore.ps_lite import MXNetStores
from hybridps.memory import Arena, Layout
from hybridps.tensor_collectives import Tensor

layout = Layout.of("float32", {"w": (8,)})
gradients = Arena(layout)
with open_job(stores={"mxnet": MXNetStores()}) as job:
    algorithm = job.algorithm("sync")
    algorithm.join_gradients("model", layout)
    algorithm.barrier()
    for step in itertools.count():
        gradients.flat[:] = 1
        algorithm.finish_(algorithm.reduce_("model", Tensor([gradients.flat]), 0, layout.length))
        if step == 0:
            print("sum", gradients.flat[0], flush=True)
        time.sleep(0.01)
"""

LEAVES = """
import sys, time
from contextlib import closing
from pathlib import Path
import numpy as np
from hybridps.config import Settings
from hybridps.kvstore.ps_lite import MXNetStores
from hybridps.memory import Layout
from hybridps.ps.rules import Elastic

address, group, left = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
layout = Layout.of("float32", {"w": (1000,)})
initial, weights = np.full(layout.length, 10 + group, np.float32), np.full(layout.length, 2, np.float32)
settings = Settings(deadline_seconds=30.0, chunk_bytes=1024)
with closing(MXNetStores()([address], job="job", group=group, groups=2, settings=settings)) as store:
    print(store.register("w", layout, initial, Elastic(0.5)).value, flush=True)
    store.barrier()
    while group == 1 and not left.exists():
        time.sleep(0.05)
    d = np.empty_like(weights)
    store.exchange("w", weights, d, 0, layout.length).wait()
    store.pull("w", weights)
    print(*set(d), *set(weights), flush=True)
if group == 0:
    left.touch()
"""


REFUSALS = """
import sys
from contextlib import closing
import numpy as np
from hybridps.config import Settings
from hybridps.errors import HybridPSError
from hybridps.kvstore.ps_lite import MXNetStores
from hybridps.memory import Layout
from hybridps.ps.clocks import BoundedStale
from hybridps.ps.rules import SGD, Elastic, Sum

def refused(what, call):
    try:
        call()
    except HybridPSError as error:
        print(f"{what}: {type(error).__name__}: {error}", flush=True)

address, settings = sys.argv[1], Settings(deadline_seconds=20.0)
def open(address=address, groups=1, settings=settings, stores=MXNetStores()):
    return stores([address], job="job", group=0, groups=groups, settings=settings)

layout = Layout.of("float32", {"w": (8,)})
values = np.ones(layout.length, np.float32)
refused("address", lambda: open("tcp://127.0.0.1:5555"))
refused("groups", lambda: open(groups=2))
refused("keys", lambda: open(settings=Settings(keys="folder")))
with closing(open()) as store:
    refused("stale", lambda: store.register("s", layout, None, SGD(rate=1.0), BoundedStale(2)))
    refused("dtype", lambda: store.register("d", Layout.of("float64", {"w": (8,)}), None, Sum()))
    store.register("sum", layout, None, Sum())
    refused("again", lambda: store.register("sum", layout, None, Sum()))
    store.register("elastic", layout, values, Elastic(0.5))
    refused("finite", lambda: store.exchange("elastic", values * np.nan, values.copy(), 0, layout.length))
    refused("keys only", lambda: store.exchange("sum", values, values, 0, 4))
    refused("codec", lambda: store.register("c", layout, None, Sum(), None, "float16"))
    store.exchange("sum", values, values, 0, layout.length).wait()
    refused("clock", lambda: store.exchange("elastic", values, values, 0, layout.length))
    assert store.exchange_rows("sum", [values], [values], 0, layout.length) is None
    store.exchange("sum", values * np.nan, values, 0, layout.length).wait()
    assert np.isnan(values[:8]).all()
    store.drop("sum")
    refused("dropped", lambda: store.pull("sum", values))
    store.register("sum", layout, None, Sum())
    store.barrier()
refused("closed", lambda: store.pull("sum", values))
refused("left", open)
"""

SAID = {
    "address": "ServerError: tcp://127.0.0.1:5555 is not where MXNet's servers are",
    "groups": "ServerError: MXNet's servers at 127.0.0.1:.* were started for groups=1, and this job has 2",
    "keys": "ConfigError: MXNet's servers know no keys",
    "stale": r"ServerError: MXNet's servers cannot keep the clock BoundedStale\(.*2\) of SGD",
    "dtype": "LayoutError: table 'd' is of float64, and MXNet's servers can be trusted with float32 alone",
    "again": "ServerError: table 'sum' is registered already by group 0",
    "finite": "NotFiniteError: the values brought to table 'elastic' were refused: element 0 is nan",
    "keys only": "LayoutError: elements 0:4 are not whole keys of the buffer of 16",
    "codec": "ServerError: MXNet's servers do not know the codec 'float16'",
    "dropped": "ServerError: table 'sum' is not registered by group 0: it has elastic",
    "clock": "ServerError: table 'elastic' has the clock FreeRunning.*first exchange had BulkSynchronous",
    "closed": "ServerError: group 0 has left MXNet's servers",
    "left": "ServerError: this process has left MXNet's servers",
}


def tier(groups: int) -> ServerProcess:
    options = ["--groups", str(groups)]
    return ServerProcess(Settings(backend="mxnet"), arguments=options, start_seconds=SECONDS)


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=SECONDS, check=False)


def test_what_mxnet_s_servers_cannot_do_is_refused() -> None:
    with tier(groups=1) as servers:
        done = python("-c", REFUSALS, servers.address)
        below = [each for each in psutil.Process(servers.pid).children() if "keeper.py" not in "".join(each.cmdline())]
        assert len(below) == 2, "the scheduler and a server"
        os.kill(servers.pid, signal.SIGKILL)
        assert psutil.wait_procs(below, timeout=10)[1] == []
    assert done.returncode == 0, done.stderr
    said = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    assert said.keys() == SAID.keys()
    for what, expected in SAID.items():
        assert re.match(expected, said[what]), said[what]


ALONE = """
import sys, time
from hybridps.config import Settings
from hybridps.errors import DeadlineError
from hybridps.kvstore.ps_lite import MXNetStores

settings = Settings(deadline_seconds=1.0, heartbeat_seconds=0.2)
try:
    MXNetStores()([sys.argv[1]], job="job", group=0, groups=2, settings=settings)
except DeadlineError as error:
    print(error)
"""


def test_a_group_that_does_not_come_is_a_deadline_and_the_process_ends() -> None:
    """It is the scheduler who waits for the others, and meanwhile says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as scheduler:
        address = f"ps-lite://127.0.0.1:{scheduler.getsockname()[1]}?groups=2&servers=1"
        done = python("-c", ALONE, address)
    assert done.stdout.startswith("the meeting of all groups is not done after 1 s: another group has not come so far")
    assert done.returncode == 1


class Launched:
    """A launcher of two groups at MXNet's servers, once both have their first sum; the processes that it started."""

    def __init__(self, script: Path) -> None:
        options = ["--backend", "mxnet", "-n", "2", "--groups", "2", "--set", "heartbeat_seconds=0.2"]
        command = [sys.executable, "-m", "hybridps", "run", *options, "--", "python", str(script)]
        self.popen = subprocess.Popen(
            command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.lines: list[str] = []
        assert self.popen.stdout is not None
        while sum("] sum 2.0" in line for line in self.lines) < 2:
            line = self.popen.stdout.readline()
            assert line, "".join(self.lines)
            self.lines.append(line)
        self.started = psutil.Process(self.popen.pid).children(recursive=True)

    def servers(self) -> list[psutil.Process]:
        return [one for one in self.started if "hybridps.kvstore.ps_lite.server" in one.cmdline()]

    def end(self) -> tuple[int, str]:
        """The exit status and all that was said; nothing that was started may be left."""
        out, _ = self.popen.communicate(timeout=SECONDS)
        assert psutil.wait_procs(self.started, timeout=10)[1] == []
        return self.popen.returncode, "".join(self.lines) + out


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "sum.py"
    path.write_text(SUM)
    return path


def test_a_group_may_leave_an_asynchronous_job(tmp_path: Path) -> None:
    """The first group leaves before the second one exchanges; and its initial values count."""
    with tier(groups=2) as servers, ThreadPoolExecutor(2) as pool:
        arguments = [("-c", LEAVES, servers.address, str(group), str(tmp_path / "left")) for group in (0, 1)]
        first, second = pool.map(lambda each: python(*each), arguments)
    assert (first.stdout, first.returncode) == ("new\n-4.0 6.0\n", 0), first.stderr
    assert (second.stdout, second.returncode) == ("late\n-2.0 4.0\n", 0), second.stderr


def test_a_killed_server_ends_the_job_soon_and_nothing_is_left(script: Path) -> None:
    run = Launched(script)
    scheduler, server = run.servers()
    began = time.monotonic()
    server.kill()
    status, said = run.end()
    assert status == 1
    assert "[servers] hybridps: serving at ps-lite://127.0.0.1:" in said
    assert "2 workers in 2 groups (1 + 1), 1 server" in said
    assert "the MXNet server 0 ended with exit status 137, so the others were stopped" in said
    assert "MXNet's scheduler at 127.0.0.1" in said
    assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--bind", "tcp://192.0.2.1:9000", "--groups", "2"], "would be open to everybody on the network.*--insecure"),
        ([], "MXNet's servers serve one job and need to know its number of groups: give --groups G"),
        (["--bind", "tcp://0.0.0.0:*", "--groups", "2"], "MXNet's scheduler cannot listen at tcp://0.0.0.0"),
    ],
)
def test_servers_that_cannot_be_started_are_one_line(options: list[str], said: str) -> None:
    command = [sys.executable, "-m", "hybridps", "serve", *options]
    environ = environment({"HYBRIDPS_BACKEND": "mxnet"})
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 2
    assert re.fullmatch(f"hybridps: error: .*{said}.*\n", done.stderr)


def test_without_the_kvstore_the_backend_is_unknown() -> None:
    script = "from hybridps.job import open_job\nopen_job()"
    done = mpirun(2, ["-m", "mpi4py", "-c", script], {"HYBRIDPS_BACKEND": "mxnet", "HYBRIDPS_GROUPS": "2"}, timeout=30)
    assert done.returncode != 0
    assert "HYBRIDPS_BACKEND=mxnet belongs to the KVStore types of MXNet" in done.stderr
