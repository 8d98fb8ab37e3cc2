"""Waits while a shared host gives this machine too little of its cores for tests that have time limits."""

from __future__ import annotations

import os
import time

SHARE = 0.5
"""The share of a core that a busy loop must get."""

PROBE_SECONDS = 5
BETWEEN_SECONDS = 20
LIMIT_SECONDS = 65 * 60
"""Afterwards the tests run anyway."""

STALL_SECONDS = 0.005
"""A step of the loop takes less than a microsecond if nothing stops it."""


def share_of_a_core() -> float:
    """Return which share of the time a busy loop of this process runs."""
    began = last = time.monotonic()
    stalled = 0.0
    while last - began < PROBE_SECONDS:
        now = time.monotonic()
        if now - last > STALL_SECONDS:
            stalled += now - last
        last = now
    return 1 - stalled / (last - began)


def main() -> None:
    """Return when a busy loop gets its share, or at the limit."""
    began = time.monotonic()
    while (share := share_of_a_core()) < SHARE and time.monotonic() - began < LIMIT_SECONDS:
        print(f"a busy loop gets {share:.0%} of a core ({os.cpu_count()} cores); waiting", flush=True)
        time.sleep(BETWEEN_SECONDS)
    print(f"a busy loop gets {share:.0%} of a core", flush=True)


if __name__ == "__main__":
    main()
