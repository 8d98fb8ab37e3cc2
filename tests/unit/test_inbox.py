"""What wakes the communication thread, and in which order it takes items."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hybridps.compiled.arrivals import _AWAKE, _SLEEP, arrive
from hybridps.step.inbox import Inbox
from hybridps.step.schedule import Item, do_nothing

LONG = 30.0

_end = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(lambda *given: None)
END = ctypes.cast(_end, ctypes.c_void_p).value


class Named(Item):
    """An item that notes what it saw."""

    def __init__(self, inbox: Inbox, name: str = "") -> None:
        super().__init__(inbox)
        self.name = name
        self.saw: list[bool] = []

    def seen(self) -> None:
        self.saw.append(self.arrived)


def posted(inbox: Inbox, *names: str) -> list[Named]:
    items = [Named(inbox, name) for name in names]
    for item in items:
        inbox.put(item)
    return items


def waiting(inbox: Inbox, take: Callable[[], bool]) -> tuple[threading.Thread, list[bool]]:
    """A thread that sleeps now, and what its call will have returned."""
    came: list[bool] = []
    thread = threading.Thread(target=lambda: came.append(take()))
    thread.start()
    stat = Path(f"/proc/self/task/{thread.native_id}/stat")
    while inbox.arrivals._state[_SLEEP] == _AWAKE or stat.read_text().rpartition(")")[2].split()[0] != "S":
        time.sleep(0.001)
    return thread, came


def names_of(inbox: Inbox) -> list[str]:
    return [item.name for item in inbox.items.open()]


def test_takes_in_order_and_ends() -> None:
    inbox = Inbox()
    items = posted(inbox, "a", "b", "c")
    assert inbox.take(None)
    assert names_of(inbox) == ["a", "b", "c"]
    items[1]()
    assert inbox.take(None)
    assert [item.saw for item in items] == [[False], [False, True], [False]]
    assert not inbox.take(0.01)


def test_an_arrival_is_seen_after_the_post_however_it_is_reported() -> None:
    inbox = Inbox()
    item, other = posted(inbox, "a", "b")
    arrive(item.take_ticket(), END, 1, 1)
    other(do_nothing)
    assert inbox.take(None)
    assert item.saw == other.saw == [False, True]
    assert item.arrived_at <= other.arrived_at
    assert item.release is None
    assert other.release is do_nothing


def test_other_names_do_not_wake() -> None:
    inbox = Inbox()
    (awaited,) = posted(inbox, "weight")
    inbox.take_all()
    thread, came = waiting(inbox, lambda: inbox.take_first_of(LONG, [awaited]))
    posted(inbox, "bias")
    thread.join(0.2)
    assert thread.is_alive()
    awaited()
    thread.join(LONG)
    assert came == [True]
    assert names_of(inbox) == ["weight", "bias"]


def test_the_same_name_in_the_next_step_does_not_wake_who_waits_for_a_ticket() -> None:
    inbox = Inbox()
    awaited, other = posted(inbox, "weight", "bias")
    tickets = [awaited.take_ticket(), other.take_ticket()]
    inbox.take_all()
    thread, came = waiting(inbox, lambda: inbox.take_first_of(LONG, [awaited], ["next"]))
    posted(inbox, "weight")
    arrive(tickets[1], END, 1, 1)
    thread.join(0.2)
    assert thread.is_alive()
    arrive(tickets[0], END, 1, 1)
    thread.join(LONG)
    assert came == [True]
    assert awaited.arrived
    assert other.arrived


@pytest.mark.parametrize("name", ["", "next"])
def test_an_item_without_a_name_and_an_awaited_name_wake(name: str) -> None:
    inbox = Inbox()
    (awaited,) = posted(inbox, "weight")
    awaited.take_ticket()
    inbox.take_all()
    thread, came = waiting(inbox, lambda: inbox.take_first_of(LONG, [awaited], ["next"]))
    posted(inbox, name)
    thread.join(LONG)
    assert came == [True]


def test_a_ticket_that_is_taken_during_the_wait_wakes() -> None:
    """The program posts an item, and takes its ticket later: the thread may already wait for the item."""
    inbox = Inbox()
    (awaited,) = posted(inbox, "weight")
    inbox.take_all()
    thread, came = waiting(inbox, lambda: inbox.take_first_of(LONG, [awaited]))
    arrive(awaited.take_ticket(), END, 1, 1)
    thread.join(LONG)
    assert came == [True]
    assert awaited.arrived


def test_any_item_wakes_who_waits_for_all() -> None:
    inbox = Inbox()
    thread, came = waiting(inbox, lambda: inbox.take(LONG))
    posted(inbox, "bias")
    thread.join(LONG)
    assert came == [True]


def test_what_came_before_the_wait_ends_it() -> None:
    inbox = Inbox()
    (awaited,) = posted(inbox, "weight")
    awaited.take_ticket()
    inbox.take_all()
    posted(inbox, "bias")
    assert inbox.take_first_of(LONG, [awaited])


def test_a_late_wake_up_does_not_end_the_next_wait() -> None:
    inbox = Inbox()
    thread, _ = waiting(inbox, lambda: inbox.take(LONG))
    posted(inbox, "first")
    thread.join(LONG)
    inbox.arrivals.wake()  # as of a thread that saw it asleep, and was late
    thread, came = waiting(inbox, lambda: inbox.take(LONG))
    thread.join(0.2)
    assert thread.is_alive()
    posted(inbox, "second")
    thread.join(LONG)
    assert came == [True]


@pytest.mark.timeout(60)
def test_no_wake_up_is_lost_under_load() -> None:
    """One that is lost is a wait that never ends."""
    inbox = Inbox()
    (awaited,) = posted(inbox, "never")
    awaited.take_ticket()
    inbox.take_all()
    count = 20_000

    def put(first: int) -> None:
        for number in range(first, count, 2):
            posted(inbox, "wanted" if number % 5 == 0 else "other")

    def put_all() -> None:
        threads = [threading.Thread(target=put, args=(first,)) for first in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        posted(inbox, "wanted")

    all_threads = threading.Thread(target=put_all)
    all_threads.start()
    while len(names_of(inbox)) < count + 2:
        assert inbox.take_first_of(LONG, [awaited], ["wanted"])
    all_threads.join()
