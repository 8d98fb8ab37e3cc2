"""`hybridps top`, against real servers."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from functools import partial

import numpy as np
import pytest

from hybridps.cli.top.servers import Figures, job_rows, page, read
from hybridps.config import Settings
from hybridps.memory import Layout
from hybridps.ps.client import Client
from hybridps.ps.keys import Quotas, make_tenant
from hybridps.ps.rules import Elastic, Sum

pytestmark = pytest.mark.timeout(60)

LAYOUT = Layout.of("float32", {"w": (600,)})
STRANGE = 'w"\\\x1b[2J\n{}'


def hybridps(*arguments):
    command = [sys.executable, "-m", "hybridps", *arguments]
    return command, os.environ | {"COLUMNS": "200", "LINES": "40", "TERM": "xterm"}


@contextmanager
def serving(*options):
    """A `hybridps serve` with metrics: its address, and that of its metrics."""
    command, environ = hybridps("serve", "--metrics-port", "0", *options)
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as server:
        try:
            yield tuple(server.stdout.readline().split()[-1] for _ in range(2))
        finally:
            server.terminate()
            assert server.wait(20) == 0


def client(address, job="job", group=0, groups=1, keys=None):
    settings = Settings(chunk_bytes=1024, connect_seconds=5.0, deadline_seconds=20.0, keys=keys)
    return Client([address], job=job, group=group, groups=groups, settings=settings)


def exchange(store, table="w"):
    values = np.ones(LAYOUT.length, np.float32)
    store.exchange(table, values, values, 0, LAYOUT.length).wait()


def until(url, true):
    """The first figures for which it is `true`."""
    deadline = time.monotonic() + 20
    while not true(figures := read(url)):
        assert time.monotonic() < deadline, figures
    return figures


def top(url, *options):
    """The lines that `hybridps top --once` prints."""
    command, environ = hybridps("top", url.removeprefix("http://").removesuffix("/metrics"), "--once", *options)
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=30, check=True)
    return [line.split() for line in done.stdout.splitlines() if line]


@pytest.mark.slow
def test_a_job_is_one_line_however_many_tables_it_has():
    with serving() as (address, url), client(address, "run-1") as store, client(address, "run-2", 0, 2) as first:
        with client(address, "run-2", 1, 2) as second:
            for table in ("w", "gradients", STRANGE):
                store.register(table, LAYOUT, None, Sum())
                exchange(store, table)
            for group in (first, second):
                group.register("w", LAYOUT, None, Elastic(0.5))
            exchange(second)
            until(url, lambda figures: figures.of("table_rounds_total", "run-2", "run-2", "w") == 1)
            head, one, two = top(url)[1:]
        assert head[:5] == ["JOB", "GROUPS", "ROUNDS/S", "LAG", "SLOWEST"]
        assert (one[:2], two[:2]) == (["run-1", "1"], ["run-2", "2"])
        assert (one[3:5], two[3:5]) == (["0", "-"], ["1", "0"])
        tables = top(url, "--tables")[4:]
        assert [line[0] for line in tables] == ["TABLE", "run-1/gradients", "run-1/w", 'run-1/w"\\?[2J?{}', "run-2/w"]


def test_rates_are_those_of_the_fastest_table_and_of_the_tenant():
    seconds = "uptime_seconds"
    rounds = {("job", "job", "w"): 4.0, ("job", "job", "b"): 8.0}
    now = {
        seconds: {(): 12.0},
        "job_groups": {("job", "job"): 2.0},
        "table_rounds_total": rounds,
        "table_staleness_values": {("job", "job", "w"): 3.0, ("job", "job", "b"): 0.0},
        "table_slowest_group": {("job", "job", "w"): 1.0, ("job", "job", "b"): 0.0},
        "tenant_messages_total": {("job",): 5.0},
        "tenant_received_bytes_total": {("job",): 6e6},
        "tenant_sent_bytes_total": {("job",): 2e6},
        "tenant_memory_bytes": {("job",): 9e3},
        "tenant_memory_limit_bytes": {("job",): 4e9},
        "tenant_refused_total": {("job",): 0.0},
    }
    rows = job_rows(Figures({seconds: {(): 10.0}}), Figures(now))
    assert rows == [("job", "2", "4", "3", "1", "3 MB", "1 MB", "9 KB of 4 GB", "0")]


@pytest.mark.slow
def test_a_tenant_with_several_jobs_has_a_line_above_them(tmp_path):
    for name in ("alice", "bob"):
        make_tenant(tmp_path, name, Quotas(memory_bytes=1 << 30))
    alice, bob = (str(tmp_path / f"for-{name}") for name in ("alice", "bob"))
    with (
        serving("--keys", str(tmp_path)) as (address, url),
        client(address, "first", keys=alice) as first,
        client(address, "second", keys=alice) as second,
        client(address, "third", keys=bob) as third,
    ):
        for store in (first, second, third):
            store.register("w", LAYOUT, None, Sum())
            exchange(store)
        until(url, lambda figures: len(figures.labels("job_groups")) == 3)
        shown = top(url)[2:]
        assert [line[:2] for line in shown] == [["alice", "2"], ["first", "1"], ["second", "1"], ["bob/third", "1"]]
        assert "GB" in shown[0]
        assert "GB" not in shown[1]


def test_names_that_others_chose_cannot_change_the_terminal():
    from rich.console import Console

    metrics = {"tenant_messages_total": {(STRANGE,): 1.0}, "table_rounds_total": {("job", "job", STRANGE): 2.0}}
    figures = Figures(metrics)
    console = Console(width=200, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(page(figures, figures, tables=True))
    shown = console.export_text()
    assert "\x1b" not in shown
    assert 'job/w"\\?[2J?{}' in shown


def test_it_shows_the_figures_on_a_terminal_until_ctrl_c():
    with serving() as (address, url), client(address) as store:
        store.register("w", LAYOUT, None, Sum())
        exchange(store)
        command, environ = hybridps("top", url, "--tables")
        ours, theirs = pty.openpty()
        # A shell that starts something in the background has it ignore Ctrl-C, and so would this process.
        end_at_ctrl_c = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
        streams = {"stdin": theirs, "stdout": theirs, "stderr": subprocess.PIPE}
        with subprocess.Popen(command, env=environ, preexec_fn=end_at_ctrl_c, **streams) as shown:
            os.close(theirs)
            text, deadline = b"", time.monotonic() + 20
            while b"job/w" not in text:
                assert select.select([ours], [], [], deadline - time.monotonic())[0], text
                text += os.read(ours, 1 << 16)
            shown.send_signal(signal.SIGINT)
            while shown.poll() is None:  # it clears the screen, and waits while the terminal is full
                assert time.monotonic() < deadline + 20
                if select.select([ours], [], [], 0.1)[0]:
                    with contextlib.suppress(OSError):
                        os.read(ours, 1 << 16)
            assert (shown.returncode, shown.stderr.read()) == (0, b"")
        os.close(ours)


@pytest.mark.parametrize("address", ["127.0.0.1:9", "http://[::1", "127.0.0.1:nine"])
def test_nobody_there_is_one_line_and_status_2(address):
    command, environ = hybridps("top", address, "--once")
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("hybridps: error: no metrics at ")
    assert done.stderr.count("\n") == 1
