"""A server as it is seen from outside: its metrics, and `hybridps top`."""

from __future__ import annotations

import io
import os
import pty
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager

import numpy as np
import pytest
from in_thread import in_thread

from hybridps.cli.top import Figures, page, read
from hybridps.config import Settings
from hybridps.errors import ServerError
from hybridps.memory import Layout
from hybridps.ps.client import Client
from hybridps.ps.clocks import BoundedStale, BulkSynchronous, FreeRunning
from hybridps.ps.keys import AllowList, Credentials, Quotas, make_tenant
from hybridps.ps.metrics import serve_metrics
from hybridps.ps.progress import Lag, Progress
from hybridps.ps.rules import Elastic, Sum
from hybridps.ps.rules.finite import NotFiniteError
from hybridps.ps.server import Server

pytestmark = pytest.mark.timeout(60)

LAYOUT = Layout.of("float32", {"w": (600,)})
STRANGE = 'w"\\\x1b[2J\n{}'


def test_progress_counts_values_and_rounds():
    progress = Progress(BulkSynchronous().start(3), 2)
    for chunk in range(2):
        progress.arrive(0, chunk)
    progress.arrive(2, 0)
    assert (progress.completed, progress.lag) == (0, Lag(1, 1.0))
    progress.arrive(1, 0)
    assert (progress.completed, progress.lag) == (0.5, Lag(1, 0.5))
    progress.leave(1)
    assert progress.lag == Lag(2, 0.5)
    progress.leave(2)
    assert (progress.completed, progress.lag) == (1, Lag(0, 0.0))
    progress.join(1)
    assert progress.lag == Lag(0, 0.0)
    progress.leave(0)
    progress.leave(1)
    assert progress.lag == Lag(None, 0.0)


@pytest.mark.parametrize("clock", [BoundedStale(3), FreeRunning()])
def test_every_value_is_a_round_without_synchrony(clock):
    progress = Progress(clock.start(2), 1)
    for _ in range(3):
        progress.arrive(1, 0)
    assert (progress.completed, progress.lag) == (3, Lag(0, 3.0))


@pytest.fixture
def folder(tmp_path):
    make_tenant(tmp_path / "keys", "alice", Quotas(memory_bytes=1 << 30))
    make_tenant(tmp_path / "keys", "bob", Quotas(bytes_per_second=1 << 20))
    return tmp_path / "keys"


@contextmanager
def serving(**options):
    """A server in a thread, and where its metrics are."""
    server = Server(**options)
    (line,) = serve_metrics(server.observe, Settings(metrics_port=0))
    url = line.removeprefix("hybridps: metrics at ")
    with in_thread(server):
        yield server, url


def client(address, folder=None, group=0, groups=1, job="job"):
    settings = Settings(chunk_bytes=1024, connect_seconds=5.0, deadline_seconds=20.0, keys=folder and str(folder))
    return Client([address], job=job, group=group, groups=groups, settings=settings)


def until(url, true):
    """The first figures for which it is `true`."""
    deadline = time.monotonic() + 20
    while not true(figures := read(url)):
        assert time.monotonic() < deadline, figures
    return figures


def exchange(store, table="w", number=1.0):
    values = np.full(LAYOUT.length, number, np.float32)
    store.exchange(table, values, values, 0, LAYOUT.length).wait()


def test_what_is_told_of_tenants_jobs_and_tables(folder):
    with (
        serving(allowed=AllowList.load(folder)) as (server, url),
        client(server.address, folder / "for-alice", 0, 2, "first") as store,
        client(server.address, folder / "for-alice", 1, 2, "first") as other,
        client(server.address, folder / "for-bob", job="second") as bob,
    ):
        store.register("w", LAYOUT, None, Elastic(0.5))
        other.register("w", LAYOUT, None, Elastic(0.5))
        bob.register(STRANGE, LAYOUT, None, Sum())
        for _ in range(3):
            exchange(other)
        exchange(store)
        exchange(bob, STRANGE)
        with pytest.raises(NotFiniteError):
            exchange(bob, STRANGE, np.nan)
        told = until(url, lambda figures: figures.of("tenant_not_finite_total", "bob"))
        assert (told.of("job_groups", "alice", "first"), told.of("job_groups", "bob", "second")) == (2, 1)
        assert told.of("table_rounds_total", "alice", "first", "w") == 4
        assert told.of("table_staleness_values", "alice", "first", "w") == 2
        assert told.of("table_slowest_group", "alice", "first", "w") == 0
        assert told.of("table_rounds_total", "bob", "second", STRANGE) >= 1
        assert 0 <= told.of("table_round_age_seconds", "alice", "first", "w") < 20
        assert told.of("tenant_messages_total", "alice") >= 6
        assert told.of("tenant_served_bytes_total", "alice") >= 4 * LAYOUT.nbytes
        assert told.of("tenant_sent_bytes_total", "alice") == 4 * LAYOUT.nbytes
        assert told.of("tenant_received_bytes_total", "alice") > 4 * LAYOUT.nbytes
        assert LAYOUT.nbytes < told.of("tenant_memory_bytes", "alice") < 1 << 30
        assert told.of("tenant_memory_limit_bytes", "alice") == 1 << 30
        assert told.of("tenant_memory_limit_bytes", "bob") is None
        assert told.of("tenant_rested_seconds_total", "bob") > 0
        assert (told.of("tenant_refused_total", "alice"), told.of("tenant_waiting_messages", "alice")) == (0, 0)
        assert told.of("tenant_refused_total", "bob") == told.of("refused_requests_total")
        assert told.of("threads") >= 1
        text = urllib.request.urlopen(url, timeout=5).read().decode()
        assert not secrets_of(folder) & set(text.split('"'))
        assert not any(secret in text for secret in secrets_of(folder))


def secrets_of(folder):
    both = [Credentials.load(folder / name) for name in ("for-alice", "for-bob")]
    return {secret for mine in both for secret in (mine.token, mine.secret, mine.public)}


def test_a_group_that_leaves_is_not_the_slowest():
    with serving() as (server, url), client(server.address, None, 0, 2) as store:
        with client(server.address, None, 1, 2) as other:
            store.register("w", LAYOUT, None, Elastic(0.5))
            other.register("w", LAYOUT, None, Elastic(0.5))
            exchange(other)
            until(url, lambda told: told.of("table_staleness_values", "job", "job", "w") == 1)
        until(url, lambda told: told.of("job_groups", "job", "job") == 1)
        told = until(url, lambda told: told.of("table_staleness_values", "job", "job", "w") == 0)
        assert told.of("table_slowest_group", "job", "job", "w") == 0


def test_a_port_in_use_is_named():
    with socket.create_server(("127.0.0.1", 0)) as taken, Server() as server:
        assert serve_metrics(server.observe, Settings()) == []
        port = taken.getsockname()[1]
        with pytest.raises(ServerError, match=f"metrics cannot be served at 127.0.0.1:{port}: .*in use"):
            serve_metrics(server.observe, Settings(metrics_port=port))


def test_what_others_chose_cannot_change_the_terminal():
    from rich.console import Console

    metrics = {"tenant_messages_total": {("job",): 1.0}, "table_rounds_total": {("job", "job", STRANGE): 2.0}}
    figures = Figures({f"hybridps_{name}": values for name, values in metrics.items()})
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(page(figures, figures))
    shown = console.export_text()
    assert "\x1b" not in shown
    assert 'job/w"\\?[2J?{}' in shown


# The commands


def hybridps(*arguments):
    environ = {name: value for name, value in os.environ.items() if not name.startswith("HYBRIDPS_")}
    command = [sys.executable, "-m", "hybridps", *arguments]
    return command, environ | {"COLUMNS": "200", "LINES": "40", "TERM": "xterm"}


@pytest.fixture
def process():
    """A `hybridps serve` with metrics: its address, and theirs."""
    command, environ = hybridps("serve", "--metrics-port", "0")
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as server:
        address, url = (server.stdout.readline().split()[-1] for _ in range(2))
        yield address, url
        server.terminate()
        assert server.wait(20) == 0


def test_serve_tells_where_and_top_shows_it(process):
    address, url = process
    assert url.startswith("http://127.0.0.1:")
    with client(address) as store:
        store.register("w", LAYOUT, None, Sum())
        exchange(store)
        until(url, lambda told: told.of("table_rounds_total", "job", "job", "w") == 1)
        command, environ = hybridps("top", url.removeprefix("http://").removesuffix("/metrics"), "--once")
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=30, check=True)
        lines = [line.split() for line in done.stdout.splitlines() if line]
        assert lines[1][0] == "TENANT"
        assert lines[2][:3] == ["job", "1", "1"]
        assert lines[4][:2] == ["job/w", "1"]
        assert_ctrl_c_ends(url)


def assert_ctrl_c_ends(url):
    """It shows the figures on a terminal until then."""
    command, environ = hybridps("top", url)
    ours, theirs = pty.openpty()
    with subprocess.Popen(command, env=environ, stdin=theirs, stdout=theirs, stderr=subprocess.PIPE) as shown:
        os.close(theirs)
        text = b""
        while b"job/w" not in text:
            text += os.read(ours, 1 << 16)
        shown.send_signal(signal.SIGINT)
        _, errors = shown.communicate(timeout=20)
        assert (shown.returncode, errors) == (0, b"")
    os.close(ours)


@pytest.mark.parametrize("address", ["127.0.0.1:9", "nonsense", "http://[::1", "127.0.0.1:nine"])
def test_nobody_there_is_one_line_and_status_2(address):
    command, environ = hybridps("top", address, "--once")
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("hybridps: error: no metrics at ")
    assert done.stderr.count("\n") == 1
