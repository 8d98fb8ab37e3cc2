"""What wakes the thread that takes from an inbox."""

from __future__ import annotations

import threading
import time

import pytest

from hybridps.step.inbox import Inbox

LONG = 30.0


def waiting(inbox: Inbox[str], *keys: str) -> tuple[threading.Thread, list[bool]]:
    """A thread that waits, and what it will have returned."""
    came: list[bool] = []
    thread = threading.Thread(target=lambda: came.append(inbox.wait(LONG, keys)))
    thread.start()
    while not inbox._sleeps:
        time.sleep(0.001)
    return thread, came


def test_takes_in_order_and_ends() -> None:
    inbox: Inbox[str] = Inbox()
    for entry in "abc":
        inbox.put(entry, entry)
    assert inbox.wait(None)
    assert inbox.take_all() == ["a", "b", "c"]
    assert inbox.take_all() == []
    assert not inbox.wait(0.01)


def test_other_keys_do_not_wake() -> None:
    inbox: Inbox[str] = Inbox()
    thread, came = waiting(inbox, "weight")
    inbox.put("first", "bias")
    thread.join(0.2)
    assert thread.is_alive()
    inbox.put("second", "weight")
    thread.join(LONG)
    assert came == [True]
    assert inbox.take_all() == ["first", "second"]


def test_an_entry_about_no_key_wakes() -> None:
    inbox: Inbox[str] = Inbox()
    thread, came = waiting(inbox, "weight")
    inbox.put("the step has ended")
    thread.join(LONG)
    assert came == [True]


def test_any_entry_wakes_who_waits_for_all() -> None:
    inbox: Inbox[str] = Inbox()
    thread, came = waiting(inbox)
    inbox.put("first", "bias")
    thread.join(LONG)
    assert came == [True]


def test_what_came_before_the_wait_ends_it() -> None:
    inbox: Inbox[str] = Inbox()
    inbox.put("first", "bias")
    assert inbox.wait(None, ("weight",))


def test_a_late_token_does_not_end_the_next_wait() -> None:
    inbox: Inbox[str] = Inbox()
    thread, _ = waiting(inbox)
    inbox.put("first")
    thread.join(LONG)
    inbox.take_all()
    inbox._wake.put(None)  # as of a thread that saw it asleep, and was late
    thread, came = waiting(inbox)
    thread.join(0.2)
    assert thread.is_alive()
    inbox.put("second")
    thread.join(LONG)
    assert came == [True]


@pytest.mark.timeout(60)
def test_no_wake_up_is_lost_under_load() -> None:
    """One that is lost is a wait that never ends."""
    inbox: Inbox[int] = Inbox()
    count, end = 20_000, -1

    def put(first: int) -> None:
        for number in range(first, count, 2):
            inbox.put(number, "wanted" if number % 5 == 0 else "other")

    def put_all() -> None:
        threads = [threading.Thread(target=put, args=(first,)) for first in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        inbox.put(end, "wanted")

    all_threads = threading.Thread(target=put_all)
    all_threads.start()
    taken: list[int] = []
    while end not in taken[-1:]:
        assert inbox.wait(None, ("wanted",))
        taken += inbox.take_all()
    all_threads.join()
    assert sorted(taken) == [end, *range(count)]
