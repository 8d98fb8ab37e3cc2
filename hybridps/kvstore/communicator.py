"""The thread of a worker that communicates, in the order of the program.

MXNet's engine would run operations of different keys in any order, and ranks that communicate in
different orders wait for each other for ever. So everything is handed to this one thread.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence

from mxnet.ndarray import NDArray

from hybridps.kvstore import engine
from hybridps.mpi_groups import end_group


class Communicator:
    """Runs what is submitted, one after the other. An exception there ends the group."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="hybridps-communicator", daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[], None]) -> None:
        self._work.put(work)

    def operation(self, arrays: Sequence[NDArray], work: Callable[[], None], priority: int = 0) -> None:
        """Submit `work` on the memory of `arrays`, for when MXNet's engine is done with them.

        Returns at once; the engine lets later readers and writers of the arrays wait until it is done.
        """
        started: queue.SimpleQueue[engine.Done] = queue.SimpleQueue()
        engine.push(arrays, started.put, priority)

        def run() -> None:
            done = started.get()
            work()
            done()

        self.submit(run)

    def stop(self) -> None:
        """Return when all that was submitted is done."""
        self._work.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            while (work := self._work.get()) is not None:
                work()
        except BaseException as error:
            # The main thread may wait in the engine for what will never be done, and cannot be told.
            end_group(error)
