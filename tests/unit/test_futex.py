"""Sleep until a word of memory changes, with a futex and without."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from hybridps.mpi_groups.threads import ThreadGroup
from hybridps.shared_memory import shared_memory
from hybridps.tensor_collectives.node import Node, futex

pytestmark = pytest.mark.timeout(30)


@pytest.fixture(params=["futex", "naps"])
def word(request, monkeypatch):
    """An int64 that is 5, and its address."""
    if request.param == "naps":
        monkeypatch.setattr(futex, "_NUMBER", None)
    elif futex._NUMBER is None:
        pytest.skip("this machine has no futex that is known here")
    word = shared_memory(64).view(np.int64)[:1]
    word[0] = 5
    return word


def test_a_change_that_came_before_is_not_waited_for(word):
    futex.wait_for_change(word.ctypes.data, 4, seconds=60)


def test_only_the_lower_half_of_a_large_count_is_compared(word):
    word[0] = (1 << 40) + 7
    futex.wait_for_change(word.ctypes.data, (1 << 40) + 6, seconds=60)
    futex.wait_for_change(word.ctypes.data, (1 << 40) + 7, seconds=0.01)


def test_who_sleeps_is_woken(word):
    def sleep():
        while word[0] == 5:
            futex.wait_for_change(word.ctypes.data, 5, seconds=60)

    sleepers = [threading.Thread(target=sleep, daemon=True) for _ in range(3)]
    for sleeper in sleepers:
        sleeper.start()
    time.sleep(0.05)
    word[0] = 6
    futex.wake(word.ctypes.data)
    for sleeper in sleepers:
        sleeper.join(20)
        assert not sleeper.is_alive()


def test_time_is_up_without_a_change(word):
    futex.wait_for_change(word.ctypes.data, 5, seconds=0.02)
    assert word[0] == 5


def test_ranks_that_wait_for_one_go_on_when_it_arrives(monkeypatch):
    """Nobody sleeps until it looks at the clock again: that would take minutes here."""
    monkeypatch.setattr("hybridps.tensor_collectives.node.node.SLEEP_SECONDS", 60.0)

    def rank(group):
        node = Node(group, range(group.size), deadline_seconds=20)
        for _ in range(50):
            if group.rank == 0:
                node.meet("an exchange", asleep=True)
                node.arrive()
            else:
                node.arrive()
                node.wait_for_rank(0, "the answer")

    ThreadGroup.run(3, rank, deadline_seconds=20)
