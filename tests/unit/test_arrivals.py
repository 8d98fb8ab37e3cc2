"""What threads report without Python, and what wakes the thread that takes it."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Iterator

import pytest

from hybridps.compiled import arrivals
from hybridps.compiled.arrivals import Arrivals, arrive

LONG = 30.0
ENDED: list[tuple[int, int, int | None]] = []

_ended = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(
    lambda first, second, third: ENDED.append((first, second, third))
)
END = ctypes.cast(_ended, ctypes.c_void_p).value


@pytest.fixture
def some() -> Iterator[Arrivals[str]]:
    ENDED.clear()
    made: Arrivals[str] = Arrivals()
    yield made
    made.close()


def sleeping(some: Arrivals[str], awaited: list[int] | None = None) -> threading.Thread:
    """A thread that sleeps."""
    thread = threading.Thread(target=some.sleep, args=(LONG, awaited))
    thread.start()
    while not some._state[arrivals._SLEEP]:
        time.sleep(0.001)
    return thread


def test_items_are_taken_in_the_order_of_their_arrival(some: Arrivals[str]) -> None:
    tickets = {name: some.ticket(name) for name in "abc"}
    assert some.take() == []
    assert not some.has_any
    before = time.monotonic()
    for name in "cab":
        arrive(tickets[name], END, 1, 2)
    assert some.has_any
    taken = some.take()
    assert [name for name, _ in taken] == ["c", "a", "b"]
    times = [before, *(seconds for _, seconds in taken), time.monotonic()]
    assert times == sorted(times)
    assert some.take() == []
    assert not some.has_any


def test_each_operation_is_ended_with_its_own_parameters(some: Arrivals[str]) -> None:
    tickets = [some.ticket(name) for name in "abc"]
    for number, ticket in enumerate(tickets):
        arrive(ticket, END, 10 + number, 20 + number)
    some.take()
    assert ENDED == []
    some.end([tickets[2], tickets[0]])
    assert ENDED == [(12, 22, None), (10, 20, None)]
    some.end([tickets[1]])
    assert ENDED[2:] == [(11, 21, None)]


def test_tickets_are_used_again_once_they_have_ended(some: Arrivals[int]) -> None:
    count = 3 * arrivals._BLOCK // 2  # more than are made together
    known = set()
    for _ in range(5):
        tickets = [some.ticket(number) for number in range(count)]
        assert len(set(tickets)) == count
        known.update(tickets)
        for ticket in tickets:
            arrive(ticket, END, 1, 1)
        assert [number for number, _ in some.take()] == list(range(count))
        some.end(tickets)
    assert len(known) <= 2 * arrivals._BLOCK


def test_any_arrival_ends_a_sleep(some: Arrivals[str]) -> None:
    ticket, thread = some.ticket("a"), sleeping(some)
    arrive(ticket, END, 1, 1)
    thread.join(LONG)
    assert not thread.is_alive()
    some.take()
    some.end([ticket])


@pytest.mark.parametrize("place", [0, 1])
def test_only_what_is_awaited_ends_a_sleep(some: Arrivals[str], place: int) -> None:
    tickets = [some.ticket(name) for name in "abc"]
    thread = sleeping(some, tickets[1:])
    arrive(tickets[0], END, 1, 1)
    thread.join(0.2)
    assert thread.is_alive()
    arrive(tickets[1 + place], END, 1, 1)
    thread.join(LONG)
    assert not thread.is_alive()
    assert [name for name, _ in some.take()] == ["a", "bc"[place]]


def test_a_sleep_ends_in_time_and_when_it_is_called_off(some: Arrivals[str]) -> None:
    began = time.monotonic()
    some.sleep(0.01)
    assert time.monotonic() - began >= 0.01
    thread = sleeping(some, [])
    some.wake()
    thread.join(LONG)
    assert not thread.is_alive()
    some.wake()
    some.sleep(None)  # returns at once


def test_what_has_arrived_before_lets_nobody_sleep(some: Arrivals[str]) -> None:
    arrive(some.ticket("a"), END, 1, 1)
    some.sleep(None, [])


def test_memory_stays_while_an_operation_may_use_it() -> None:
    ended, under_way = Arrivals[str](), Arrivals[str]()
    tickets = [ended.ticket("a"), under_way.ticket("a")]
    arrive(tickets[0], END, 1, 1)
    ended.take()
    ended.end(tickets[:1])
    for each in (ended, under_way):
        each.close()
    assert ended not in arrivals._open
    assert under_way in arrivals._open
    arrive(tickets[1], END, 1, 1)  # late, and harmless


@pytest.mark.timeout(60)
def test_no_arrival_and_no_wake_up_is_lost_under_load(some: Arrivals[int]) -> None:
    """A wake-up that is lost is a wait that never ends."""
    rounds, count, threads = 300, 64, 4
    begin = threading.Barrier(threads + 1)
    tickets: list[int] = []

    def report(first: int) -> None:
        for _ in range(rounds):
            begin.wait()
            for ticket in tickets[first::threads]:
                arrive(ticket, END, 1, 1)

    all_threads = [threading.Thread(target=report, args=(first,)) for first in range(threads)]
    for thread in all_threads:
        thread.start()
    for round_ in range(rounds):
        tickets[:] = [some.ticket(number) for number in range(count)]
        begin.wait()
        left = set(range(count))
        while left:
            awaited = max(left)
            some.sleep(None, [tickets[awaited]])
            left -= {number for number, _ in some.take()}
        some.end(tickets)
        assert len(ENDED) == (round_ + 1) * count
    for thread in all_threads:
        thread.join()
