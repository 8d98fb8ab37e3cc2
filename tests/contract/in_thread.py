"""A server in a thread of the test."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from hybridps.ps.server import Server


@contextmanager
def in_thread(server: Server) -> Iterator[Server]:
    """Run it, and end it afterwards."""
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join(10)
        stands = sys._current_frames().get(thread.ident or 0)
        assert not thread.is_alive(), "".join(traceback.format_stack(stands))
