"""A server as it is seen from outside: its metrics."""

from __future__ import annotations

import socket
import time
import urllib.request
from contextlib import contextmanager

import numpy as np
import pytest
from in_thread import in_thread

from hybridps.cli.top.servers import read
from hybridps.config import Settings
from hybridps.errors import ServerError
from hybridps.memory import Layout
from hybridps.ps.client import Client
from hybridps.ps.keys import AllowList, Credentials, Quotas, make_tenant
from hybridps.ps.rules import Elastic, Momentum
from hybridps.ps.rules.finite import NotFiniteError
from hybridps.ps.server import Server
from hybridps.ps.server.metrics import serve_metrics

pytestmark = pytest.mark.timeout(60)

LAYOUT = Layout.of("float32", {"w": (600,)})
STRANGE = 'w"\\\x1b[2J\n{}'


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
        bob.register(STRANGE, LAYOUT, None, Momentum(rate=1.0))
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
