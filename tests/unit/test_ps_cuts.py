"""The network between groups and a server breaks and heals; or it is slow."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import cut_links
import msgspec
import numpy as np
import pytest

from hybridps.config import Settings
from hybridps.errors import ServerError
from hybridps.memory import Layout
from hybridps.mpi_groups.threads import SoloGroup
from hybridps.ps.client import Client
from hybridps.ps.clocks import FreeRunning
from hybridps.ps.rules import SGD, Elastic, Momentum, Sum, warm_up
from hybridps.tensor_collectives import Tensor
from hybridps.tiers import ServersTier

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.skipif(bool(cut_links.missing()), reason=cut_links.missing()),
]

LAYOUT = Layout.of("float32", {"w": (600,)})
LENGTH = LAYOUT.length
WAITS = {"lost_seconds": 1.0, "heartbeat_seconds": 0.2, "deadline_seconds": 40.0}
SETTINGS = Settings(chunk_bytes=1024, connect_seconds=10.0, **WAITS)


@pytest.fixture
def links():
    with cut_links.cut_links() as made:
        yield made


def for_seconds(*short):
    """Cuts of these durations; and in the nightly tests of a minute, and of ten."""
    minute = pytest.param(60.0, marks=[pytest.mark.nightly, pytest.mark.timeout(200)])
    ten_minutes = pytest.param(600.0, marks=[pytest.mark.nightly, pytest.mark.timeout(1500)])
    return pytest.mark.parametrize("seconds", [*short, minute, ten_minutes])


def client(links, group=0, groups=1, link=None, waits=WAITS):
    address = links.address(group if link is None else link)
    return client_of([address], group, groups, waits)


def client_of(addresses, group, groups, waits):
    settings = msgspec.structs.replace(SETTINGS, **waits)
    return Client(addresses, job="job", group=group, groups=groups, settings=settings)


def join(store, rule, initial=None, clock=None):
    return store.register("w", LAYOUT, initial, rule, clock)


def step(store, values):
    """An exchange of these values; the answer."""
    answer = np.zeros(LENGTH, np.float32)
    store.exchange("w", np.full(LENGTH, values, np.float32), answer, 0, LENGTH).wait()
    assert (answer == answer[0]).all()
    return float(answer[0])


def both(pool, *calls):
    return [future.result(40) for future in [pool.submit(*call) for call in calls]]


def wait_for_return(*stores):
    while any(store.away for store in stores):
        time.sleep(0.02)


def cut_for(links, seconds, *which):
    links.cut(*which)
    time.sleep(seconds)
    links.heal(*which)


@for_seconds(3.0)
def test_synchronous_groups_wait_and_lose_nothing(links, seconds, capfd):
    """All groups are cut off, for longer than a silent group is lost: nobody has gone on without them."""
    waits = WAITS | {"deadline_seconds": 40.0 + 2 * seconds}
    with cut_links.serving(links, **waits), ThreadPoolExecutor(2) as pool:
        stores = both(pool, *((client, links, group, 2, None, waits) for group in (0, 1)))
        both(pool, *((join, store, Momentum(rate=0.5, momentum=0.5), np.zeros(LENGTH, np.float32)) for store in stores))
        got, weights, momentum = [], np.float32(0), np.float32(0)
        for number in range(8):
            first = pool.submit(step, stores[0], 1.0)
            if number == 3:
                pool.submit(cut_for, links, seconds, 0, 1).result()  # one value may be there, the other is not sent
            got.append((step(stores[1], 2.0), first.result(40)))
        for _ in range(8):
            momentum = np.float32(0.5) * momentum + 3
            weights -= np.float32(0.5) * momentum
        assert got[-1] == (weights, weights)
        wait_for_return(*stores)
        both(pool, *((store.close,) for store in stores))
    said = capfd.readouterr().err
    assert "cannot be reached for 1 s: waiting up to" in said
    assert "is back after" in said


def pulled(store):
    out = np.zeros(LENGTH, np.float32)
    store.pull("w", out)
    return out


@for_seconds(3.0)
def test_an_asynchronous_group_comes_back_and_its_gradient_counts_once(links, seconds):
    """Another group goes on meanwhile, without the one that is cut off and treated as lost."""
    waits = WAITS | {"deadline_seconds": 40.0 + 2 * seconds}
    with cut_links.serving(links, **waits) as server, ThreadPoolExecutor(2) as pool:
        stores = both(pool, *((client, links, group, 2, None, waits) for group in (0, 1)))
        both(pool, *((join, store, SGD(rate=1.0), np.zeros(LENGTH, np.float32), FreeRunning()) for store in stores))
        step(stores[1], 1.0)
        links.cut(1)
        late = pool.submit(step, stores[1], 10.0)
        end = time.monotonic() + seconds
        count = 1
        while time.monotonic() < end:
            step(stores[0], 1.0)
            count += 1
            time.sleep(0.1)
        links.heal(1)
        late.result(40)
        step(stores[1], 100.0)
        assert (pulled(stores[0]) == -(count + 110)).all()
        both(pool, *((store.close,) for store in stores))
        server.terminate()
        assert "group 1 of job 'job' gave no sign of life for 1 s: lost" in server.communicate()[1]


def test_a_synchronous_group_whose_others_went_on_is_told(links):
    with cut_links.serving(links, **WAITS), ThreadPoolExecutor(2) as pool:
        stores = both(pool, *((client, links, group, 2) for group in (0, 1)))
        both(pool, *((join, store, Sum(), None) for store in stores))
        both(pool, *((step, store, 1.0) for store in stores))
        links.cut(1)
        late = pool.submit(step, stores[1], 1.0)
        assert step(stores[0], 1.0) == 1
        links.heal(1)
        with pytest.raises(ServerError, match="treated as lost, and the others went on without it"):
            late.result(40)
        both(pool, *((store.close,) for store in stores))


class Averaging:
    """A group of one rank that trains and averages weights, all elements alike."""

    def __init__(self, store, initial):
        self.tier = ServersTier(SoloGroup(), store)
        self.weights = np.full(LENGTH, initial, np.float32)
        self.tier.register("w", LAYOUT, Tensor([self.weights]), Elastic(0.5), FreeRunning())
        self.skipped = self.averaged = 0
        self.trained = 0.0

    def step(self):
        """Train by 1, and average if that can be; how long it took."""
        began = time.monotonic()
        self.weights += 1
        self.trained += 1
        if self.tier.is_alone("w", Tensor([self.weights])):
            self.skipped += 1
        else:
            self.tier.finish(self.tier.exchange("w", Tensor([self.weights]), 0, LENGTH))
            self.averaged += 1
        return time.monotonic() - began


@for_seconds(4.0)
def test_an_elastic_group_trains_alone_and_comes_back(links, seconds):
    """What it exchanged when the link was cut counts once or not at all: the weights add up to what was trained."""
    warm_up(Elastic(0.5), "float32")
    waits = WAITS | {"deadline_seconds": 40.0 + 2 * seconds}
    with cut_links.serving(links, **waits), ThreadPoolExecutor(2) as pool:
        stores = both(pool, *((client, links, group, 2, None, waits) for group in (0, 1)))
        first, second = both(pool, *((Averaging, store, 0.0) for store in stores))
        for phase in range(2):
            began = first.averaged, second.averaged
            links.cut(1)
            end, longest = time.monotonic() + seconds, 0.0
            while time.monotonic() < end:
                first.step()
                longest = max(longest, second.step() if second.skipped else 0.0 * second.step())
                time.sleep(0.05)
            assert second.skipped > 5 * (phase + 1), "it trains alone"
            assert first.averaged - began[0] > 5, "nobody waits for it"
            links.heal(1)
            wait_for_return(stores[1])
            second.step()
        second.step()
        total = first.weights + second.weights + pulled(stores[0])
        np.testing.assert_allclose(total, first.trained + second.trained, rtol=1e-5)
        both(pool, *((store.close,) for store in stores))


@contextmanager
def two_servers(links, groups, waits):
    """The servers, each of them behind a link of its own, and a client of both for each group."""
    ports = cut_links.PORT, cut_links.PORT + 1
    addresses = [links.address(link, port) for link, port in enumerate(ports)]
    with (
        cut_links.serving(links, ports[0], **waits),
        cut_links.serving(links, ports[1], **waits),
        ThreadPoolExecutor(groups) as pool,
    ):
        stores = both(pool, *((client_of, addresses, group, groups, waits) for group in range(groups)))
        yield stores, pool
        both(pool, *((store.close,) for store in stores))


@for_seconds()
def test_synchronous_groups_wait_for_one_of_their_servers(links, seconds):
    waits = WAITS | {"deadline_seconds": 40.0 + 2 * seconds}
    with two_servers(links, 2, waits) as (stores, pool):
        both(pool, *((join, store, Sum(), np.zeros(LENGTH, np.float32)) for store in stores))
        for number in range(8):
            first = pool.submit(step, stores[0], 1.0 + number)
            if number == 3:
                cut_for(links, seconds, 1)
            assert step(stores[1], 2.0) == 3 + number
            assert first.result(40) == 3 + number
        wait_for_return(*stores)


@for_seconds(4.0)
def test_elastic_groups_train_alone_while_one_of_their_servers_is_cut_off(links, seconds):
    """A part of the weights may have been averaged when the link was cut: each element adds up to what was trained."""
    warm_up(Elastic(0.5), "float32")
    waits = WAITS | {"deadline_seconds": 40.0 + 2 * seconds}
    with two_servers(links, 2, waits) as (stores, pool):
        groups = both(pool, *((Averaging, store, 0.0) for store in stores))
        both(pool, *((group.step,) for group in groups))
        links.cut(1)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            both(pool, *((group.step,) for group in groups))
            time.sleep(0.05)
        assert all(group.skipped > 5 for group in groups)
        links.heal(1)
        wait_for_return(*stores)
        averaged = [group.averaged for group in groups]
        for _ in range(3):
            both(pool, *((group.step,) for group in groups))
        assert [group.averaged - before for group, before in zip(groups, averaged, strict=True)] == [3, 3]
        total = sum(group.weights for group in groups) + pulled(stores[0])
        np.testing.assert_allclose(total, sum(group.trained for group in groups), rtol=1e-5)


def test_a_group_ends_when_the_server_is_away_for_too_long(links):
    waits = WAITS | {"reconnect_seconds": 2.0}
    with cut_links.serving(links, **WAITS):
        store = client(links, waits=waits)
        join(store, Sum())
        links.cut(0)
        with pytest.raises(ServerError, match="gave no sign of life for 2 s: the server cannot be reached"):
            step(store, 1.0)
        store.close()


def test_a_slow_link_starves_no_heartbeats(links):
    """Both directions are full for several times the seconds after which a silent group or server is lost."""
    layout = Layout.of("float32", {"w": (200_000,)})
    with cut_links.serving(links, **WAITS | {"lost_seconds": 2.0}) as server:
        links.slow(0, "2mbit")
        store = client(links, waits=WAITS | {"lost_seconds": 2.0})
        values = np.ones(layout.length, np.float32)
        store.register("w", layout, None, Sum())
        began, away = time.monotonic(), False
        pending = [store.exchange("w", values, values, 0, layout.length)]
        while not pending[0].done:
            store.session.listen()
            away |= store.away
        pending[0].wait()
        assert time.monotonic() - began > 4
        assert not away
        store.close()
        server.terminate()
        assert "lost" not in server.communicate()[1]
