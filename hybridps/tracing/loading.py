"""How a training script says that it loads data: the trace shows it, and the report counts it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

MOST = 1024
"""Times that are kept until a step takes them."""

_loads: deque[tuple[float, float]] = deque(maxlen=MOST)


@contextmanager
def loading() -> Iterator[None]:
    """Within the context the script loads or waits for its next batch. Costs a microsecond; no setting is needed.

    With `HYBRIDPS_TRACE`, the trace and the report of the run show this time apart from that of computing:

        with loading():
            batch = next(batches)
    """
    began = time.monotonic()
    try:
        yield
    finally:
        _loads.append((began, time.monotonic()))


def take_loads(until: float) -> list[tuple[float, float]]:
    """Return the times at which the script loaded data that began before `until`, and forget them.

    Times are in seconds of the monotonic clock.
    """
    loads = []
    while _loads and _loads[0][0] < until:
        loads.append(_loads.popleft())
    return loads
