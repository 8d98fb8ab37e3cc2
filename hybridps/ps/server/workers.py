"""The worker threads of a server. A chunk has the same owner as long as it exists, so nothing is locked."""

from __future__ import annotations

import itertools
import logging
import math
import os
import queue
import threading
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from hybridps.errors import HybridPSError, ServerError
from hybridps.ps.model import Task

log = logging.getLogger("hybridps.ps")

TOGETHER = 16
"""The loop is told when this many of the tasks that were handed out together are done, by whichever threads. It is told
earlier of the last ones, and of a task whose answer has values to send."""

AT_ONCE_BYTES, LITTLE_BYTES = 6 << 20, 1 << 20
"""Handing a task to a thread and back takes as long as moving about 2 MB. While all threads are idle, the loop itself
therefore does the tasks of one owner if they move at most `AT_ONCE_BYTES`. It does tasks of further owners only if all
that it does moves at most `LITTLE_BYTES`, because threads would do them in parallel."""


class _Batch:
    """Tasks that were handed out together."""

    def __init__(self) -> None:
        self.size = 0
        self.done = itertools.count(1)
        """Counts those that are done. Several threads may do so without a lock."""


class _Given(NamedTuple):
    """A task for a thread."""

    task: Task
    batch: _Batch


class Workers:
    """`count` threads, pinned to `cores` in turn if given. Only the loop calls the methods, except for `wake`.

    Raises ServerError for cores that this process may not use.
    """

    def __init__(self, count: int, cores: Sequence[int] = ()) -> None:
        usable = os.sched_getaffinity(0)
        if not usable.issuperset(cores):
            named = ", ".join(map(str, sorted(usable)))
            raise ServerError(f"threads cannot be pinned to the cores {list(cores)}: this process may use {named}")
        self.count = count
        self.backlog = 0
        """The number of tasks that were handed out and not collected."""
        self.ready = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """A descriptor that can be read when `collect` has something that a thread has done."""
        self.done_at_once: list[tuple[Task, Any]] = []
        """Tasks that the loop itself has done, for `collect`."""
        self._done: queue.SimpleQueue[tuple[Task, Any]] = queue.SimpleQueue()
        self._queues: list[queue.SimpleQueue[_Given | None]] = [queue.SimpleQueue() for _ in range(count)]
        pinned = itertools.cycle(cores or [None])
        self._threads = [
            threading.Thread(target=self._run, args=work, name="hybridps-worker", daemon=True)
            for work in zip(self._queues, pinned, strict=False)
        ]
        for thread in self._threads:
            thread.start()

    def hand(self, tasks: Iterable[Task]) -> None:
        """Hand tasks to their owners. The tasks of one owner are done in this order.

        If no thread has work, the loop does small tasks itself, after it has handed out the others.
        """
        by_owner: dict[int, list[Task]] = {}
        for task in tasks:
            by_owner.setdefault(task.owner, []).append(task)
        little, given = list[Task](), list[tuple[int, _Given]]()
        batch = _Batch()
        most: float = -1 if self.backlog else AT_ONCE_BYTES
        for owner, own in by_owner.items():
            self.backlog += len(own)
            nbytes = sum(math.inf if task.nbytes is None else task.nbytes for task in own)
            if nbytes <= most:
                little += own
                most = min(most, LITTLE_BYTES) - nbytes
            else:
                batch.size += len(own)
                given += [(owner, _Given(task, batch)) for task in own]
        for owner, each in given:  # when the size of the batch is known
            self._queues[owner].put(each)
        self.done_at_once += [(task, _do(task)) for task in little]

    def collect(self, is_ready: bool, wait: bool = False) -> list[tuple[Task, Any]]:
        """Return the completed tasks, each with the result of `run` or a ServerError.

        `is_ready`: `ready` can be read. `wait`: wait for all that were handed out.
        """
        done, self.done_at_once = self.done_at_once, []
        if is_ready:
            os.eventfd_read(self.ready)
        # Without being told, it would find some of those that are to be reported together.
        while (is_ready and not self._done.empty()) or (wait and len(done) < self.backlog):
            done.append(self._done.get())
        self.backlog -= len(done)
        return done

    def wake(self) -> None:
        """Make `ready` readable. Any thread may call this; after `close` it does nothing."""
        if self.ready >= 0:
            os.eventfd_write(self.ready, 1)

    def close(self) -> None:
        """End the threads when they have done what they were handed."""
        for tasks in self._queues:
            tasks.put(None)
        for thread in self._threads:
            thread.join()
        os.close(self.ready)
        self.ready = -1

    def _run(self, given: queue.SimpleQueue[_Given | None], core: int | None) -> None:
        if core is not None:
            os.sched_setaffinity(0, {core})
        while self._do_given(given.get()):  # while it waits, no variable keeps the values of the last task
            pass

    def _do_given(self, each: _Given | None) -> bool:
        """Do a task, and return True; False if there is none."""
        if each is None:
            return False
        self._done.put((each.task, _do(each.task)))
        done = next(each.batch.done)
        if done == each.batch.size or done % TOGETHER == 0 or each.task.sends:
            self.wake()
        return True


def _do(task: Task) -> Any:
    """Run a task. An exception becomes a refusal that the groups are told, so that the thread continues."""
    try:
        return task.run()
    except Exception as error:
        return as_refusal(error)


def as_refusal(error: Exception) -> HybridPSError:
    """Return the error that groups are told for an exception."""
    if isinstance(error, HybridPSError):
        return error
    log.error("a request or a task has failed", exc_info=error)
    return ServerError(f"the server failed: {type(error).__name__}: {error}")
