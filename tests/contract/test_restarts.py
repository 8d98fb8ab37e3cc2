"""A server that is killed at any moment comes back, and nothing is lost: the bits are those of an undisturbed run."""

from __future__ import annotations

import random
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from hybridps.config import Settings
from hybridps.memory import Layout
from hybridps.processes import ServerProcess
from hybridps.ps.client import Client
from hybridps.ps.clocks import BoundedStale, FreeRunning
from hybridps.ps.model import Joining
from hybridps.ps.rules import SGD, Adam, Elastic, ElasticTogether, Momentum, Sum
from hybridps.shared_memory import shared_memory

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.chaos.servers import RestartedServer  # noqa: E402

AT_NIGHT = [True, pytest.param(False, marks=pytest.mark.nightly)]
"""In shared memory; and over the network in the nightly tests."""

pytestmark = pytest.mark.timeout(120)

LAYOUT = Layout.of("float32", {"w": (1000, 1000), "b": (77,)})
SETTINGS = Settings(chunk_bytes=1 << 20, deadline_seconds=60.0)


class Disturbed:
    """Kills the server at random moments until it has done so often enough; groups go on until then."""

    def __init__(self, server, kills, seed=0):
        self._server, self._kills, self._random = server, kills, random.Random(seed)
        self.failed = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    @property
    def over(self):
        return not self._thread.is_alive()

    def _run(self):
        for _ in range(self._kills):
            time.sleep(self._random.uniform(0, 0.3))
            if self.failed:
                return
            self._server.kill()


def memory(shared):
    return shared_memory(LAYOUT.nbytes).view(np.float32) if shared else np.zeros(LAYOUT.length, np.float32)


def gradient(group, step):
    return np.random.default_rng(group).standard_normal(LAYOUT.length, np.float32) * np.float32(1 + step % 7)


def train(address, group, rule, shared, more, in_place=False, codec="exact"):
    """Exchange in step until all groups agree that there are no `more` steps. Returns how many, and what is there."""
    with Client([address], job="job", group=group, groups=2, settings=SETTINGS) as store:
        initial = memory(shared)
        initial[:] = 0.5
        assert store.register("w", LAYOUT, initial, rule, codec=codec) in Joining
        store.register("more", Layout.of("float32", {"more": (16,)}), None, Sum())
        values = memory(shared)
        answer = values if in_place else memory(shared)
        step, goes_on = 0, np.ones(16, np.float32)
        while goes_on[0]:
            np.copyto(values, gradient(group, step))
            store.exchange("w", values, answer, 0, LAYOUT.length).wait()
            step += 1
            goes_on[0] = more(step)
            store.exchange("more", goes_on, goes_on, 0, 16).wait()
        centre = memory(shared)
        store.pull("w", centre)
        return step, answer.copy(), centre.copy()


def both(work):
    with ThreadPoolExecutor(2) as pool:
        return [future.result() for future in [pool.submit(work, group) for group in range(2)]]


def check(kills, rule, shared, in_place=False, codec="exact", seed=0):
    """Train with kills, and then as many steps without: the same bits."""
    with RestartedServer(SETTINGS) as server:
        disturbed = Disturbed(server, kills, seed)
        try:
            here = both(
                lambda group: train(
                    server.address, group, rule, shared, lambda step: not disturbed.over, in_place, codec
                )
            )
        finally:
            disturbed.failed = True
    with ServerProcess(SETTINGS) as server:
        steps = here[0][0]
        there = both(
            lambda group: train(server.address, group, rule, shared, lambda step: step < steps, in_place, codec)
        )
    for mine, expected in zip(here, there, strict=True):
        assert mine[0] == expected[0]
        np.testing.assert_array_equal(mine[1], expected[1])
        np.testing.assert_array_equal(mine[2], expected[2])


@pytest.mark.parametrize("shared", [True, False], ids=["shared memory", "network"])
@pytest.mark.parametrize(
    "rule",
    [Momentum(rate=0.01), pytest.param(ElasticTogether(0.3), marks=pytest.mark.nightly)],
    ids=["momentum", "together"],
)
def test_synchronous_groups_lose_nothing(rule, shared):
    check(6, rule, shared)


@pytest.mark.parametrize("shared", AT_NIGHT, ids=["shared memory", "network"])
def test_sums_in_the_place_of_the_values_are_right(shared):
    check(6, Sum(), shared, in_place=True)


def test_compressed_values_are_not_lost_either():
    check(4, Adam(), False, codec="float16")


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("shared", [True, False], ids=["shared memory", "network"])
def test_two_hundred_kills_change_no_bit(shared):
    check(200, Momentum(rate=0.01), shared, seed=7)


def alone(rule, clock, shared, work):
    """Two groups at their own pace under kills: what each returns, and the centre when both have ended."""
    ended = threading.Barrier(2, timeout=60)

    def run(group):
        with Client([server.address], job="job", group=group, groups=2, settings=SETTINGS) as store:
            store.register("w", LAYOUT, memory(shared), rule, clock)
            result = work(store, group, disturbed)
            ended.wait()
            centre = memory(shared)
            store.pull("w", centre)
            return result, centre.copy()

    with RestartedServer(SETTINGS) as server:
        disturbed = Disturbed(server, 6, seed=3)
        try:
            (first, centre), (second, _) = both(run)
        finally:
            disturbed.failed = True
    return first, second, centre


@pytest.mark.parametrize("shared", AT_NIGHT, ids=["shared memory", "network"])
def test_elastic_averaging_conserves_the_sum(shared):
    """w of both groups and the centre add up to what they were, and what was added."""

    def work(store, group, disturbed):
        values, answer, steps = memory(shared), memory(shared), 0
        while not disturbed.over:
            values += np.float32(group + 1)
            store.exchange("w", values, answer, 0, LAYOUT.length).wait()
            values -= answer
            steps += 1
        return values.astype(np.float64), steps * (group + 1)

    (first, added), (second, more), centre = alone(Elastic(0.25), None, shared, work)
    np.testing.assert_allclose(first + second + centre, added + more, rtol=1e-5)


@pytest.mark.parametrize(
    "clock", [FreeRunning(), pytest.param(BoundedStale(10**6), marks=pytest.mark.nightly)], ids=["free", "stale"]
)
@pytest.mark.parametrize("shared", [True, False], ids=["shared memory", "network"])
def test_each_gradient_of_asynchronous_groups_counts_once(shared, clock):
    """Integers, and a rate that is a power of two: sums in any order have the same bits."""

    def work(store, group, disturbed):
        values, answer, steps = memory(shared), memory(shared), 0
        values[:] = group + 1
        while not disturbed.over or steps < 40:
            store.exchange("w", values, answer, 0, LAYOUT.length).wait()
            steps += 1
        return steps * (group + 1)

    first, second, centre = alone(SGD(rate=2.0**-7), clock, shared, work)
    np.testing.assert_array_equal(centre, np.float32(-(first + second) / 2**7))
