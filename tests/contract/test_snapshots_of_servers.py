"""Servers whose machines are lost for good: new ones take the tables from snapshots, and the groups go on."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
import numpy as np
import pytest
from in_thread import in_thread

from hybridps.config import Settings
from hybridps.errors import HybridPSError, ServerError
from hybridps.memory import Layout
from hybridps.processes import ServerProcess
from hybridps.ps.client import Client
from hybridps.ps.clocks import FreeRunning
from hybridps.ps.model import Joining
from hybridps.ps.rules import SGD, Adam, Elastic, ElasticTogether, Momentum, Outer, Sum
from hybridps.ps.server import Server
from hybridps.ps.server.snapshots import SnapshotFolder

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.chaos.servers import RestartedServer  # noqa: E402

pytestmark = pytest.mark.timeout(120)

LAYOUT = Layout.of("float32", {"w": (300, 1000), "b": (77,)})
SETTINGS = Settings(
    chunk_bytes=1 << 18, deadline_seconds=60.0, connect_seconds=60.0, heartbeat_seconds=0.1, lost_seconds=1.0
)
EVERY_SECONDS = 0.1
SERVERS = {}
"""Those in threads, by address."""


@contextmanager
def serving(path, servers, paths=None, seconds=EVERY_SECONDS):
    """The addresses of servers that take snapshots in a folder, or in `paths`. They are told which groups end."""
    with ExitStack() as stack:
        options = {"snapshot_seconds": seconds, "lost_seconds": 60.0}
        many = [Server(snapshots=str(each), **options) for each in paths or [path] * servers]
        addresses = [stack.enter_context(in_thread(each)).address for each in many]
        SERVERS.update(zip(addresses, many, strict=True))
        yield addresses


@contextmanager
def joined(addresses, group=0, groups=1, rule=None, table="w", initial=0.5, settings=SETTINGS):
    """A client of a group that is lost in the end, what it found, and its weights."""
    store = Client(addresses, job="job", group=group, groups=groups, settings=settings)
    try:
        weights = np.full(LAYOUT.length, initial, np.float32)
        joining = store.register(
            table, LAYOUT, weights, rule or SGD(rate=2.0**-7), FreeRunning() if rule is None else None
        )
        yield store, joining
    finally:
        store.close(lost=True)
        for server in [SERVERS[address] for address in addresses if address in SERVERS]:
            server.end_group("job", group, returns=True)


def exchange(store, step, table="w"):
    values = np.random.default_rng(step).standard_normal(LAYOUT.length, np.float32)
    answer = np.empty_like(values)
    store.exchange(table, values, answer, 0, LAYOUT.length).wait()
    return answer


def arrays(store, rule, table="w"):
    """The centre, and the states of the rule."""
    found = [np.empty(LAYOUT.length, np.float32) for _ in range(1 + rule.states)]
    for number, array in enumerate(found):
        store.pull(table, array, number)
    return found


def await_snapshot(path, servers, those=None):
    """Return when a snapshot was begun and completed since the call, by all servers or by `those`."""
    since, folder = time.time() * 1000, SnapshotFolder(str(path))
    places = [folder.of("job", server, servers) for server in those or range(servers)]
    deadline = time.monotonic() + 30
    # Those of each server, because `common` passes over a server that has no folder yet.
    while max(set.intersection(*(set(place.numbers()) for place in places)), default=0) <= since:
        assert time.monotonic() < deadline, os.listdir(path)
        time.sleep(0.01)


RULES = [Elastic(0.25), ElasticTogether(0.5), SGD(rate=0.1), Momentum(rate=0.1), Adam(), Outer()]


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_a_job_that_goes_on_has_the_bits_of_one_that_was_not_disturbed(rule, servers, tmp_path):
    with serving(tmp_path / "a", servers) as addresses, joined(addresses, rule=rule) as (store, joining):
        assert joining is Joining.NEW
        for step in range(3):
            exchange(store, step)
        before = arrays(store, rule)
        await_snapshot(tmp_path / "a", servers)
    with serving(tmp_path / "a", servers) as addresses, joined(addresses, rule=rule, initial=9.0) as (store, joining):
        assert joining is Joining.SNAPSHOT
        np.testing.assert_array_equal(arrays(store, rule), before)
        answers = [exchange(store, step) for step in range(3, 6)]
        after = arrays(store, rule)
    with serving(tmp_path / "b", servers) as addresses, joined(addresses, rule=rule) as (store, _):
        undisturbed = [exchange(store, step) for step in range(6)][3:]
        np.testing.assert_array_equal(answers, undisturbed)
        np.testing.assert_array_equal(after, arrays(store, rule))


def train(addresses, group, most=1 << 30):
    """Bring ones until `most` steps are done, or the servers are gone. How it joined, its steps, the first centre."""
    steps = 0
    settings = msgspec.structs.replace(SETTINGS, awaits_refusing=False)
    with joined(addresses, group, 2, initial=0.0, settings=settings) as (store, joining):
        values, answer = np.ones(LAYOUT.length, np.float32), np.empty(LAYOUT.length, np.float32)
        (centre,) = arrays(store, SGD(rate=1.0))
        try:
            while steps < most:
                store.exchange("w", values, answer, 0, LAYOUT.length).wait()
                steps += 1
        except HybridPSError:
            assert most > 5
    return joining, steps, centre


@pytest.mark.parametrize("servers", [pytest.param(1, marks=pytest.mark.nightly), 2])
def test_servers_that_are_killed_at_any_moment_lose_little(servers, tmp_path):
    """Each gradient of ones moves each element by 1/128: an element says in how many rounds it was."""
    settings = Settings(snapshots=str(tmp_path), snapshot_seconds=EVERY_SECONDS)
    with ThreadPoolExecutor(2) as pool, ExitStack() as stack:
        many = [stack.enter_context(ServerProcess(settings)) for _ in range(servers)]
        groups = [pool.submit(train, [server.address for server in many], group) for group in range(2)]
        for _ in range(3):
            await_snapshot(tmp_path, servers)
        for server in many:
            os.kill(server.pid, signal.SIGKILL)
        done = sum(future.result()[1] for future in groups)
        with serving(tmp_path, servers) as addresses:
            for future in [pool.submit(train, addresses, group, 5) for group in range(2)]:
                joining, _, centre = future.result()
                assert joining is Joining.SNAPSHOT
                rounds = -128 * centre
                np.testing.assert_array_equal(rounds, np.round(rounds))
                assert 0 < rounds.min() <= rounds.max() <= done + 2 + 5  # each group may have had one under way


def test_the_newest_snapshot_that_both_servers_have_is_taken(tmp_path):
    # The servers end between two snapshots. While one of them is ahead, they may have one snapshot in common only.
    with serving(tmp_path, 2, seconds=1.0) as addresses, joined(addresses) as (store, _):
        first = exchange(store, 1)
        await_snapshot(tmp_path, 2)
        await_snapshot(tmp_path, 2)
    place = SnapshotFolder(str(tmp_path)).of("job", 1, 2)
    assert len(place.common()) == 2
    shutil.rmtree(place.path(place.numbers()[-1]))
    with serving(tmp_path, 2) as addresses, joined(addresses) as (store, joining):
        assert joining is Joining.SNAPSHOT
        np.testing.assert_array_equal(arrays(store, SGD(rate=1.0))[0], first)


def test_a_server_that_cannot_follow_the_first_one_refuses(tmp_path):
    """Each has a disk of its own, and that of the second one is new."""
    with serving(None, 2, [tmp_path / "a", tmp_path / "b"]) as addresses, joined(addresses) as (store, _):
        exchange(store, 1)
        await_snapshot(tmp_path / "a", 2, [0])
        await_snapshot(tmp_path / "b", 2, [1])
    with serving(None, 2, [tmp_path / "a", tmp_path / "c"]) as addresses:
        refused = pytest.raises(ServerError, match=r"server 1 of 2 has no values of snapshot \d+ of table 'w' in .*/c/")
        with refused, joined(addresses):
            pass
        refused = pytest.raises(ServerError, match="server 1 has no folder of snapshots: give all servers")
        with in_thread(Server()) as without, refused, joined([addresses[0], without.address]):
            pass


def test_a_server_that_was_not_lost_starts_from_the_snapshot_too(tmp_path):
    """Its groups are gone: it gives up what it has, which is later. The other way round it says what to do."""
    with serving(tmp_path, 2) as addresses, joined(addresses) as (store, _):
        first = exchange(store, 1)
        await_snapshot(tmp_path, 2)
    with serving(tmp_path, 1, seconds=1e5) as (survivor,), serving(tmp_path, 2, seconds=1e5) as (new, other):
        with serving(tmp_path, 1, seconds=1e5) as (lost,), joined([lost, survivor]) as (store, joining):
            assert joining is Joining.SNAPSHOT
            exchange(store, 2)
        for _ in range(2):
            with joined([new, survivor]) as (store, joining):
                assert joining is Joining.SNAPSHOT
                np.testing.assert_array_equal(arrays(store, SGD(rate=1.0))[0], first)
        with joined([new, other]) as (store, _):
            np.testing.assert_array_equal(arrays(store, SGD(rate=1.0))[0], first)
            second = exchange(store, 2)
        with joined([new, other]) as (store, _):
            np.testing.assert_array_equal(arrays(store, SGD(rate=1.0))[0], second)
        refused = pytest.raises(ServerError, match="has no centre here, but on the first server")
        with serving(tmp_path, 1, seconds=1e5) as (another,), refused, joined([new, another]):
            pass


def test_sums_are_in_no_snapshot(tmp_path):
    with serving(tmp_path, 1) as addresses, joined(addresses, rule=Sum(), table="sums") as (store, _):
        store.register("w", LAYOUT, None, SGD(rate=1.0))
        exchange(store, 1, "sums")
        await_snapshot(tmp_path, 1)
    place = SnapshotFolder(str(tmp_path)).of("job", 0, 1)
    assert [table.name for table in place.contents(place.numbers()[-1]).tables] == ["w"]
    with serving(tmp_path, 1) as addresses, joined(addresses, rule=Sum(), table="sums") as (_, joining):
        assert joining is Joining.NEW


def test_a_table_that_comes_late_starts_from_the_same_snapshot(tmp_path):
    rule = Momentum(rate=0.1)
    with serving(tmp_path, 2) as addresses, joined(addresses, rule=rule) as (store, _):
        store.register("late", LAYOUT, None, rule)
        before = exchange(store, 1), exchange(store, 2, "late")
        await_snapshot(tmp_path, 2)
    with serving(tmp_path, 2) as addresses, joined(addresses, rule=rule) as (store, _):
        for step in range(3):
            exchange(store, step)
            await_snapshot(tmp_path, 2)
        assert store.register("late", LAYOUT, None, rule) is Joining.SNAPSHOT
        np.testing.assert_array_equal(arrays(store, rule, "late")[0], before[1])
        assert store.register("new", LAYOUT, None, rule) is Joining.NEW


def test_a_snapshot_of_another_layout_is_not_taken(tmp_path):
    with serving(tmp_path, 1) as addresses, joined(addresses) as (store, _):
        exchange(store, 1)
        await_snapshot(tmp_path, 1)
    with serving(tmp_path, 1) as addresses, joined(addresses, rule=Adam()) as (_, joining):
        assert joining is Joining.NEW


def test_a_damaged_chunk_is_refused_and_the_server_goes_on(tmp_path):
    with serving(tmp_path, 1) as addresses, joined(addresses) as (store, _):
        exchange(store, 1)
        await_snapshot(tmp_path, 1)
    place = SnapshotFolder(str(tmp_path)).of("job", 0, 1)
    for number in place.numbers():
        with (place.path(number) / "table-0-centre.npy").open("r+b") as file:
            file.seek(-4, os.SEEK_END)
            file.write(b"\1\2\3\4")
    with serving(tmp_path, 1) as addresses:
        for _ in range(2):
            refused = pytest.raises(ServerError, match="are not those that were written. Remove that folder on all")
            with refused, joined(addresses):
                pass
        shutil.rmtree(tmp_path / "job-job")
        with joined(addresses) as (_, joining):
            assert joining is Joining.NEW


def test_a_server_with_restarts_keeps_what_it_has_from_a_snapshot(tmp_path):
    """The step of Adam goes on in each process."""
    options = ["--snapshots", str(tmp_path), "--snapshot-seconds", str(EVERY_SECONDS)]
    with RestartedServer(Settings(), options) as server, joined([server.address], rule=Adam()) as (store, _):
        exchange(store, 0)
        server.kill()
        exchange(store, 1)
        await_snapshot(tmp_path, 1)
    with (
        RestartedServer(Settings(), options) as server,
        joined([server.address], rule=Adam()) as (store, joining),
    ):
        assert joining is Joining.SNAPSHOT
        server.kill()  # nothing was computed here before
        exchange(store, 2)
        server.kill()
        here = exchange(store, 3)
    with serving(tmp_path / "b", 1) as addresses, joined(addresses, rule=Adam()) as (store, _):
        there = [exchange(store, step) for step in range(4)][-1]
    np.testing.assert_array_equal(here, there)


def test_nothing_is_written_without_groups_and_metrics_say_how_old_a_snapshot_is(tmp_path):
    with in_thread(Server(snapshots=str(tmp_path), snapshot_seconds=EVERY_SECONDS)) as server:
        observer = server.observe()
        assert observer.snapshot_age_seconds is None
        with joined([server.address]) as (store, _):
            exchange(store, 1)
            await_snapshot(tmp_path, 1)
        until = time.monotonic() + 10
        while observer.snapshot_age_seconds is None:  # the folder has it before the server has noted it
            assert time.monotonic() < until
            time.sleep(0.01)
        assert 0 <= observer.snapshot_age_seconds < 10
