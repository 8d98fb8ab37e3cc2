"""How long threads wait for a core, measured where two processes want the same one."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
import time

from hybridps.live.delays import DelayedSeconds, delayed_seconds, longest_delay

SECONDS = 0.2
OTHER = "import time\nend = time.process_time() + 5\nwhile time.process_time() < end: pass"


def on_a_shared_core(work) -> float:
    """What this work in a thread returns while another process computes on the only core that the thread may use."""
    found, core = [], max(os.sched_getaffinity(0))

    def bound() -> None:
        os.sched_setaffinity(0, {core})  # of this thread
        found.append(work())

    with subprocess.Popen([sys.executable, "-c", OTHER]) as other:
        os.sched_setaffinity(other.pid, {core})
        try:
            thread = threading.Thread(target=bound)
            thread.start()
            thread.join(60)
        finally:
            other.kill()
    return found[0]


def compute() -> None:
    end = time.thread_time() + SECONDS
    while time.thread_time() < end:
        pass


def test_a_thread_waits_for_its_core() -> None:
    def work() -> float:
        time.sleep(0.2)  # the other process starts
        own = DelayedSeconds()
        first, begun = own.read(), time.monotonic()
        compute()
        delayed, elapsed = own.read(), time.monotonic() - begun
        assert math.isnan(first)
        assert delayed <= elapsed - 0.9 * SECONDS
        return delayed

    assert on_a_shared_core(work) > 0.25 * SECONDS


def test_the_delays_of_the_other_threads_are_known() -> None:
    own, seen = str(threading.get_native_id()), {}
    assert own not in delayed_seconds()
    thread = threading.Thread(target=lambda: seen.update(delayed_seconds()))
    thread.start()
    thread.join(60)
    assert seen[own] >= 0


def test_the_longest_delay_is_that_of_one_thread() -> None:
    assert longest_delay({"1": 1.0, "2": 5.0}, {"1": 1.5, "2": 5.1, "3": 0.2}) == 0.5
    assert longest_delay({}, {}) == 0.0
