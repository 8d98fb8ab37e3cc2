"""Connections that break: what is sent again counts once, and the bits are those of a quiet network."""

from __future__ import annotations

import random
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise

import numpy as np
import pytest
from in_thread import in_thread

from hybridps.config import Settings
from hybridps.errors import ServerError
from hybridps.memory import Layout
from hybridps.ps.client import Client
from hybridps.ps.rules import Elastic, Momentum, Sum
from hybridps.ps.server import Server
from hybridps.ps.server.upstream import Parents

pytestmark = [pytest.mark.timeout(100), pytest.mark.slow]

LAYOUT = Layout.of("float32", {"w": (40_000,)})
SETTINGS = Settings(chunk_bytes=16384, connect_seconds=20.0, deadline_seconds=60.0, lost_seconds=30.0)


def serving(**options):
    return in_thread(Server(lost_seconds=30.0, **options))


class Cutting:
    """Passes connections on to a server, and cuts the first `cuts` of them after a random number of bytes."""

    def __init__(self, server, cuts, seed, most=1_500_000):
        self._most = most
        self._port = int(server.address.rpartition(":")[2])
        self._random, self._left = random.Random(seed), cuts
        self._ends = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()
        self.cut = 0

    def break_all(self):
        for end in self._ends:
            _end(end)

    def close(self):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.break_all()
        for thread in self._threads:
            thread.join()

    def _accept(self):
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self._port))
            most = self._random.randrange(2000, self._most) if self._left > 0 else 1 << 60
            self._left -= 1
            self._ends += [near, far]
            for source, target in ((near, far), (far, near)):
                self._threads.append(threading.Thread(target=self._pass, args=(source, target, most)))
                self._threads[-1].start()

    def _pass(self, source, target, most):
        try:
            while most and (data := source.recv(min(65536, most))):
                most -= len(data)
                target.sendall(data)
            self.cut += most == 0
        except OSError:  # the other direction was cut
            pass
        _end(source)
        _end(target)


def _end(connection):
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def train(addresses, rule, groups, rounds=25, codec="exact", parts=1):
    """What each group holds after some rounds, in which all contribute other numbers; with `parts` in several spans."""

    def group_of(index):
        rng = np.random.default_rng(index)
        with Client(addresses, job="job", group=index, groups=groups, settings=SETTINGS) as store:
            values = rng.standard_normal(LAYOUT.length, np.float32)
            store.register("w", LAYOUT, values, rule, codec=codec)
            edges = [*np.linspace(0, LAYOUT.length, index * parts + 2 if parts > 1 else 2, dtype=int).tolist()]
            answers = []
            for _ in range(rounds):
                values = rng.standard_normal(LAYOUT.length, np.float32)
                # The answers take the place of the values: what is sent again must not be needed.
                for operation in [store.exchange("w", values, values, *span) for span in pairwise(edges)]:
                    operation.wait()
                answers.append(values)
            return answers

    with ThreadPoolExecutor(groups) as pool:
        return list(pool.map(group_of, range(groups)))


@pytest.mark.parametrize(("rule", "groups"), [(Momentum(rate=0.1), 3), (Elastic(0.3), 1)])
@pytest.mark.parametrize("seed", [1, 2])
def test_broken_connections_change_no_bit(rule, groups, seed):
    with serving() as server:
        quiet = train([server.address], rule, groups)
    with serving() as server:
        network = Cutting(server, cuts=12, seed=seed)
        cut = train([network.address], rule, groups)
        network.close()
    assert network.cut > 3
    for here, there in zip(quiet, cut, strict=True):
        np.testing.assert_array_equal(here, there)


@pytest.mark.parametrize("codec", ["exact", "float16"])
def test_broken_connections_change_no_bit_of_spans(codec):
    with serving() as server:
        quiet = train([server.address], Momentum(rate=0.1), 3, codec=codec)
    with serving() as server:
        network = Cutting(server, cuts=12, seed=3)
        cut = train([network.address], Momentum(rate=0.1), 3, codec=codec, parts=7)
        network.close()
    assert network.cut > 3
    for here, there in zip(quiet, cut, strict=True):
        np.testing.assert_array_equal(here, there)


def test_broken_connections_between_racks_and_parents_change_no_bit():
    with serving() as server:
        quiet = train([server.address], Momentum(rate=0.1), 3)
    with serving() as parent:
        above = Cutting(parent, cuts=8, seed=1, most=20_000)
        with serving(parents=Parents((above.address,), 0, 1, SETTINGS)) as rack:
            network = Cutting(rack, cuts=8, seed=2)
            cut = train([network.address], Momentum(rate=0.1), 3)
            network.close()
        above.close()
    assert above.cut > 3
    assert network.cut > 3
    for here, there in zip(quiet, cut, strict=True):
        np.testing.assert_array_equal(here, there)


def test_a_group_that_waits_hears_its_answer_over_the_restored_connection():
    """Nothing is sent any more when the connection breaks: the client notices that by itself."""
    with serving() as server:
        network = Cutting(server, cuts=0, seed=0)
        with (
            Client([network.address], job="job", group=0, groups=2, settings=SETTINGS) as near,
            Client([server.address], job="job", group=1, groups=2, settings=SETTINGS) as far,
        ):
            near.register("w", LAYOUT, None, Sum())
            far.register("w", LAYOUT, None, Sum())
            values = np.ones(LAYOUT.length, np.float32)
            waiting = near.exchange("w", values, np.empty_like(values), 0, LAYOUT.length)
            near.pull("w", np.empty_like(values))  # so the exchange has arrived
            network.break_all()
            far.exchange("w", values, values, 0, LAYOUT.length).wait()
            waiting.wait()
            assert (values == 2).all()
        network.close()


def test_a_server_that_was_restarted_behind_the_connection_is_an_error():
    with serving() as server:
        store = Client([server.address], job="job", group=0, groups=1, settings=SETTINGS)
        store.register("w", LAYOUT, None, Sum())
    with serving(address=server.address):
        values = np.ones(LAYOUT.length, np.float32)
        with pytest.raises(ServerError, match="not known here"):
            store.exchange("w", values, values, 0, LAYOUT.length).wait()
        store.close()
