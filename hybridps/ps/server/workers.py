"""The threads of a server that own chunks. A chunk has one owner as long as it exists, so nothing is locked."""

from __future__ import annotations

import itertools
import logging
import math
import os
import queue
import threading
from collections.abc import Iterable, Sequence
from typing import Any

from hybridps.errors import HybridPSError, ServerError
from hybridps.ps.model import Task

log = logging.getLogger("hybridps.ps")

TOGETHER = 8
"""Tasks whose ends are told together, if so many wait."""

AT_ONCE_BYTES, LITTLE_BYTES = 6 << 20, 1 << 20
"""Handing a task to a thread and back takes as long as moving about 2 MB. So while all threads are idle, the loop
itself does the tasks of one owner if they move no more than `AT_ONCE_BYTES`. It does those of other owners only as long
as all that it does moves no more than `LITTLE_BYTES`: threads would do them in parallel."""


class Workers:
    """`count` threads, pinned to `cores` in turn if given. Used by the loop alone, but for `wake`.

    Raises ServerError for cores that this process may not use.
    """

    def __init__(self, count: int, cores: Sequence[int] = ()) -> None:
        usable = os.sched_getaffinity(0)
        if not usable.issuperset(cores):
            named = ", ".join(map(str, sorted(usable)))
            raise ServerError(f"threads cannot be pinned to the cores {list(cores)}: this process may use {named}")
        self.count = count
        self.backlog = 0
        """Tasks handed out that are not known to be done."""
        self.ready = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """A descriptor that can be read when `collect` has something that a thread has done."""
        self.done_at_once: list[tuple[Task, Any]] = []
        """What the loop itself has done, for `collect`."""
        self._done: queue.SimpleQueue[tuple[Task, Any]] = queue.SimpleQueue()
        self._queues: list[queue.SimpleQueue[Task | None]] = [queue.SimpleQueue() for _ in range(count)]
        pinned = itertools.cycle(cores or [None])
        self._threads = [
            threading.Thread(target=self._run, args=work, name="hybridps-worker", daemon=True)
            for work in zip(self._queues, pinned, strict=False)
        ]
        for thread in self._threads:
            thread.start()

    def hand(self, tasks: Iterable[Task]) -> None:
        """Hand tasks to their owners; those of one owner are done in this order.

        Where no thread has anything to do, little ones are done at once, when the others are handed out.
        """
        by_owner: dict[int, list[Task]] = {}
        for task in tasks:
            by_owner.setdefault(task.owner, []).append(task)
        little: list[Task] = []
        most: float = -1 if self.backlog else AT_ONCE_BYTES
        for owner, own in by_owner.items():
            self.backlog += len(own)
            nbytes = sum(math.inf if task.nbytes is None else task.nbytes for task in own)
            if nbytes <= most:
                little += own
                most = min(most, LITTLE_BYTES) - nbytes
            else:
                for task in own:
                    self._queues[owner].put(task)
        self.done_at_once += [(task, _do(task)) for task in little]

    def collect(self, is_ready: bool, wait: bool = False) -> list[tuple[Task, Any]]:
        """Tasks that are done, each with what its `run` returned, or a ServerError. Little ones may be done again.

        `is_ready`: `ready` can be read. `wait`: for all that were handed out.
        """
        if is_ready:
            os.eventfd_read(self.ready)
        done, self.done_at_once = self.done_at_once, []
        while not self._done.empty() or (wait and len(done) < self.backlog):
            done.append(self._done.get())
        self.backlog -= len(done)
        return done

    def wake(self) -> None:
        """Have `ready` be readable. Any thread may call it; nothing happens after `close`."""
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

    def _run(self, tasks: queue.SimpleQueue[Task | None], core: int | None) -> None:
        if core is not None:
            os.sched_setaffinity(0, {core})
        untold = 0
        while (task := tasks.get()) is not None:
            self._done.put((task, _do(task)))
            untold += 1
            if untold == TOGETHER or task.sends or tasks.empty():
                untold = 0
                self.wake()


def _do(task: Task) -> Any:
    """Whatever goes wrong, the groups hear of it, and the thread goes on."""
    try:
        return task.run()
    except Exception as error:
        return as_refusal(error)


def as_refusal(error: Exception) -> HybridPSError:
    """The error that groups are told."""
    if isinstance(error, HybridPSError):
        return error
    log.error("a request or a task has failed", exc_info=error)
    return ServerError(f"the server failed: {type(error).__name__}: {error}")
