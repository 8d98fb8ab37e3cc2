"""What wakes the thread that takes from an inbox."""

from __future__ import annotations

import threading
import time

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
    assert [inbox.take() for _ in range(4)] == ["a", "b", "c", None]
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
    assert [inbox.take(), inbox.take()] == ["first", "second"]


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


def test_two_who_wake_do_not_wake_twice() -> None:
    inbox: Inbox[str] = Inbox()
    thread, _ = waiting(inbox)
    inbox.put("first")
    thread.join(LONG)
    inbox._wake.put(None)  # as of a thread that saw it asleep, and was late
    inbox.take()
    began = time.monotonic()
    assert not inbox.wait(0.1)
    assert time.monotonic() - began > 0.05


def test_nothing_is_missed_under_load() -> None:
    inbox: Inbox[int] = Inbox()
    count = 20_000

    def put(first: int) -> None:
        for number in range(first, count, 2):
            inbox.put(number, "wanted" if number % 5 == 0 else "other")

    threads = [threading.Thread(target=put, args=(first,)) for first in (0, 1)]
    for thread in threads:
        thread.start()
    taken: list[int] = []
    # The last entries may be of the other key, which wakes nobody: look again now and then.
    while len(taken) < count and inbox.wait(1.0, ("wanted",)) | any(thread.is_alive() for thread in threads):
        while (entry := inbox.take()) is not None:
            taken.append(entry)
    for thread in threads:
        thread.join()
    assert sorted(taken) == list(range(count))
